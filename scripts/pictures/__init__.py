"""The pictures of the documents, made by scripts: `python -m scripts.pictures [NAME…]`.

Contents:

    cast        terminals that are recorded, and their recording as one animated SVG
    diagrams    the directory of a store, the life of a transaction
    recording   the recording of README: a worker that is killed, and its totals
"""
