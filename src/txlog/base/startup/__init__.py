"""Tricks that make the program start fast, one per module.

`txlog produce` takes about 140 ms of processor time, and would take almost twice that if its
imports ran as usual. Each module explains what it saves.

Contents:

    compute       pyarrow.compute, when a function of it is first used
    crc32c        crc32c, the checksum of everything that is written
    json          orjson, when a command first needs it
    lazy          our own modules run at their first use
    messagepack   msgspec without typing_extensions, which it does not need
"""
