"""HTTP: the REST endpoints of a served store, on Starlette and uvicorn.

Contents:

    listener   the address, and the program behind it
"""
