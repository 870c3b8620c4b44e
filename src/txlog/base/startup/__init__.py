"""How the program starts fast: one trick a module.

`txlog produce` takes about 140 ms of processor time, and would take almost twice that if its
imports ran as usual. Each module says what it saves.

Contents:

    compute       pyarrow.compute, when a function of it is first used
    crc32c        crc32c, the checksum of everything that is written
    json          orjson, when a command first needs it
    lazy          our own modules run when they are first used
    messagepack   msgspec without typing_extensions, which it does not need
"""
