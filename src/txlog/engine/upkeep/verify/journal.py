"""Verifying the journal: every file, every frame, the chain over all files, the zeros after them.

It reads the same files as a writer in spec/reliability 2.3, and changes nothing. It compares V, the
last frame of the valid chain, with D, the LSN known to be durable. A frame that another process is
writing at this moment is not a finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from txlog.engine.model.ops import decode_ops
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.frame import (
    FILE_HEADER_BYTES,
    RECORD_BYTES,
    WITNESS_PATH,
    JournalFile,
    JournalName,
    Witness,
    WitnessRecord,
    attested_lsn,
    boot_bytes,
    decode_record,
    list_journals,
)
from txlog.engine.storage.manifest import Manifest, manifest_path
from txlog.engine.store.liveness import WRITE_LOCK
from txlog.engine.upkeep.verify.findings import Findings
from txlog.errors import MissingFile, TxlogError

HINT: Final = "restore the file from a copy of the store, or txlog admin repair"
_SCAN_BYTES: Final = 1 << 20
_LOOKS_MAX: Final = 5
_WITNESS_BYTES: Final = 8192
_REWRITTEN: Final = "the next writer rewrites it"


@dataclass(slots=True)
class FrameWalk:
    """The valid frames of a file: the last one's LSN and crc; end: the byte after it.

    attested: the highest LSN that a frame in it proves to be durable
    """

    last_lsn: int
    crc: int
    end: int
    attested: int = 0


@dataclass(slots=True)
class JournalChain:
    """The journal as a whole; known_lsn above last_lsn: frames that were durable are lost.

    attested:  the highest LSN that the newest cut or a frame after it proves to be durable
    name, end: the file and byte after the last valid frame; crc: of that frame
    """

    last_lsn: int
    known_lsn: int
    name: JournalName | None
    end: int
    crc: int
    attested: int = 0

    @property
    def is_broken(self) -> bool:
        """True when frames are lost."""
        return self.name is None or self.last_lsn < self.known_lsn


def check_journals(
    disk: Disk,
    salt: bytes,
    manifests: Sequence[Manifest],
    witnessed: WitnessRecord | None,
    findings: Findings,
    *,
    decode: bool = False,
) -> JournalChain:
    """Check every journal file; returns where the chain of the newest manifest ends.

    manifests: the good manifests, oldest first
    decode:    also decode the ops of each frame
    """
    durable = max(
        [
            0 if witnessed is None else witnessed.durable_lsn,
            *(manifest.cut_lsn for manifest in manifests),
        ]
    )
    names = list_journals(disk)
    cuts = [manifest.cut_lsn for manifest in manifests] or [0]
    for manifest in manifests:
        with findings.lowered(manifest.cut_lsn < cuts[-1]):
            _check_cut(disk, salt, names, manifest, findings)
    if not names:
        findings.error(602, "there is no journal file", path="journal", hint=HINT)
        return JournalChain(cuts[-1], max(durable, cuts[-1] + 1), None, 0, 0)
    chain = JournalChain(cuts[-1], durable, None, 0, 0)
    previous: FrameWalk | None = None
    for number, name in enumerate(names):
        next_name = names[number + 1] if number + 1 < len(names) else None
        if next_name is not None and next_name.first_lsn <= cuts[0] + 1:
            _check_left_over(disk, salt, name, findings)
            continue
        is_needed = next_name is None or next_name.first_lsn > cuts[-1] + 1
        with findings.lowered(not is_needed):
            previous = _look(
                disk, salt, (name, next_name), previous, chain, findings, is_needed, decode
            )
    if all(name.first_lsn != cuts[-1] + 1 for name in names):
        chain.name = None  # the newest checkpoint does not continue in an older file
    return chain


def _check_cut(
    disk: Disk, salt: bytes, names: Sequence[JournalName], manifest: Manifest, findings: Findings
) -> None:
    """Check that a file begins where a manifest ends, and continues its chain."""
    candidates = [name for name in names if name.first_lsn == manifest.cut_lsn + 1]
    if not candidates:
        findings.error(
            602,
            f"the journal after {manifest_path(manifest.generation)} is missing: no file "
            f"begins with LSN {manifest.cut_lsn + 1}",
            path="journal",
            hint=HINT,
        )
        return
    try:
        file = JournalFile(disk, candidates[-1], salt)
    except TxlogError:
        return  # its own check reports it
    try:
        if file.chain_crc != manifest.chain_crc:
            findings.error(
                602,
                f"{candidates[-1].path} does not continue the checkpoint at LSN {manifest.cut_lsn}",
                path=candidates[-1].path,
                offset=32,
            )
    finally:
        file.close()


def _look(
    disk: Disk,
    salt: bytes,
    names: tuple[JournalName, JournalName | None],
    previous: FrameWalk | None,
    chain: JournalChain,
    findings: Findings,
    is_needed: bool,
    decode: bool,
) -> FrameWalk | None:
    """Check a file that a kept manifest needs; is_needed: the newest does, so follow the chain."""
    name, next_name = names
    try:
        file = JournalFile(disk, name, salt)
    except MissingFile:
        return None  # a checkpoint removed it meanwhile; the check of the manifest reports a loss
    except TxlogError as error:  # damaged or unreadable
        findings.caught(error, path=name.path)
        if is_needed:
            chain.known_lsn = max(chain.known_lsn, name.first_lsn)
        return None
    try:
        walked = _check_file(file, previous, next_name, findings, decode=decode)
        if is_needed:
            _follow(chain, name, walked, next_name)
        if next_name is None:
            _check_tail(disk, salt, file, walked, chain, findings)
        return walked
    finally:
        file.close()


def _check_left_over(disk: Disk, salt: bytes, name: JournalName, findings: Findings) -> None:
    """Check a file that no kept manifest needs: the next checkpoint removes it."""
    try:
        file = JournalFile(disk, name, salt)
    except MissingFile:
        return
    except TxlogError as error:
        findings.warning("void", f"{error.message}; nothing needs it", path=name.path)
        return
    try:
        findings.read(file.size)
        _rest(file, _walk(file, findings, decode=False), findings)
    finally:
        file.close()


def _check_file(
    file: JournalFile,
    previous: FrameWalk | None,
    next_name: JournalName | None,
    findings: Findings,
    *,
    decode: bool,
) -> FrameWalk:
    """Check a file up to the LSN where a newer file continues, and the bytes after that."""
    findings.read(file.size)
    name = file.name
    follows = previous is not None and previous.last_lsn == name.first_lsn - 1
    if follows and previous is not None and previous.crc != file.chain_crc:
        findings.error(602, f"{name.path} does not continue the chain", path=name.path, offset=32)
    stop = None if next_name is None else next_name.first_lsn - 1
    walked = _walk(file, findings, decode=decode, stop=stop)
    if stop is None:
        return walked
    if walked.last_lsn < stop:
        findings.error(
            602,
            f"{name.path} is damaged at byte {walked.end}: LSN {walked.last_lsn + 1} to "
            f"{stop} cannot be read",
            path=name.path,
            offset=walked.end,
            hint=HINT,
        )
        return walked
    # after the cut come frames that a newer file repeats, then zeros; no reader uses them
    beyond = FrameWalk(walked.last_lsn, walked.crc, walked.end, walked.attested)
    _rest(file, _walk(file, findings, decode=False, start=beyond, count=False), findings)
    return walked


def _walk(
    file: JournalFile,
    findings: Findings,
    *,
    decode: bool,
    stop: int | None = None,
    start: FrameWalk | None = None,
    count: bool = True,
) -> FrameWalk:
    """Follow the frames of a file from its first, or from `start`, up to an LSN or the last."""
    at = start or FrameWalk(file.name.first_lsn - 1, file.chain_crc, FILE_HEADER_BYTES)
    while stop is None or at.last_lsn < stop:
        frame = file.read_frame(at.end, at.last_lsn + 1, at.crc)
        if frame is None:
            break
        at.last_lsn, at.crc = frame.lsn, frame.crc
        at.end = frame.offset + frame.total_bytes
        at.attested = max(at.attested, frame.durable_lsn)
        findings.frames += count
        if decode:
            try:
                decode_ops(frame.ops, lsn=frame.lsn)
            except TxlogError as error:
                findings.caught(error, path=file.name.path, offset=frame.offset)
    return at


def _first_other(file: JournalFile, at: int) -> int | None:
    """The first byte at or after a place that is not zero."""
    size = file.file.size()
    while at < size:
        block = file.file.pread(at, min(_SCAN_BYTES, size - at))
        if not block:
            return None
        if block != bytes(len(block)):
            return at + len(block) - len(block.lstrip(b"\0"))
        at += len(block)
    return None


def _rest(file: JournalFile, walked: FrameWalk, findings: Findings) -> None:
    """Check that only zeros follow the frames that a newer file repeats."""
    other = _first_other(file, walked.end)
    if other is not None:
        findings.warning(
            "void",
            f"{file.name.path} has bytes after its last frame that nothing needs",
            path=file.name.path,
            offset=other,
        )


def _follow(
    chain: JournalChain, name: JournalName, walked: FrameWalk, next_name: JournalName | None
) -> None:
    """Follow the chain after the newest checkpoint into a file, unless it broke before."""
    is_next = chain.name is None or chain.last_lsn == name.first_lsn - 1
    if is_next:
        chain.name, chain.last_lsn = name, walked.last_lsn
        chain.end, chain.crc = walked.end, walked.crc
    chain.known_lsn = max(chain.known_lsn, walked.attested, name.first_lsn - 1)
    chain.attested = max(chain.attested, walked.attested, name.first_lsn - 1)
    if next_name is not None:
        chain.known_lsn = max(chain.known_lsn, next_name.first_lsn - 1)


def _check_tail(
    disk: Disk,
    salt: bytes,
    file: JournalFile,
    walked: FrameWalk,
    chain: JournalChain,
    findings: Findings,
) -> None:
    """Check the bytes after the last valid frame: zeros, a frame being written, an unfinished
    frame, or damage.
    """
    other = _first_other(file, walked.end)
    for _ in range(_LOOKS_MAX):
        if other is None:
            break
        file.forget_window()  # the writer may have finished since
        last = walked.last_lsn
        _walk(file, findings, decode=False, start=walked)
        _follow(chain, file.name, walked, None)
        other = _first_other(file, walked.end)
        if walked.last_lsn == last:
            break
    attested = 0
    if other is not None:
        size = file.file.size()
        attested = attested_lsn(file.file.pread(walked.end, size - walked.end), walked.end, salt)
        chain.known_lsn = max(chain.known_lsn, attested)
    if chain.last_lsn < chain.known_lsn:
        path, end = (
            (file.name.path, walked.end) if chain.name is None else (chain.name.path, chain.end)
        )
        findings.error(
            602,
            f"{path} is damaged at byte {end}: LSN {chain.last_lsn + 1} to "
            f"{chain.known_lsn} were durable and cannot be read",
            path=path,
            offset=end,
            hint=HINT,
        )
    elif other is not None and not _is_writing(disk):
        findings.warning(
            "tail",
            f"{file.name.path} ends in an unfinished frame after LSN {walked.last_lsn}",
            path=file.name.path,
            offset=other,
            hint="the next writer cuts it, and keeps a copy",
        )


def _is_writing(disk: Disk) -> bool:
    """True while a process has the write lock."""
    try:
        lock = disk.lock_file(WRITE_LOCK, create=False)
    except TxlogError:
        return False
    try:
        return lock.holder() is not None
    finally:
        lock.close()


def check_age(
    disk: Disk, salt: bytes, boot_id: str, chain: JournalChain, findings: Findings
) -> None:
    """Warn of a witness of this boot with a lower durable LSN than frames prove.

    A witness of an earlier boot may be older (R7).
    """
    witness = Witness(disk, salt)
    try:
        record = witness.read()
    except TxlogError:
        return  # reported already
    finally:
        witness.close()
    if record is None or record.boot != boot_bytes(boot_id) or record.durable_lsn >= chain.attested:
        return
    findings.warning(
        "witness",
        f"{WITNESS_PATH} is older than the journal: it knows of LSN "
        f"{record.durable_lsn}, frames prove LSN {chain.attested}",
        path=WITNESS_PATH,
        hint=_REWRITTEN,
    )


def check_witness(disk: Disk, salt: bytes, findings: Findings) -> None:
    """Check both records, and the zeros around them; the loss of both costs no message."""
    half = _WITNESS_BYTES // 2
    for _ in range(_LOOKS_MAX):  # a record may be read while it is being written
        try:
            data = disk.read(WITNESS_PATH)
        except TxlogError as error:
            findings.warning("witness", error.message, path=WITNESS_PATH, hint=_REWRITTEN)
            return
        if all(decode_record(data[at : at + RECORD_BYTES], salt) for at in (0, half)):
            break
    findings.read(len(data))
    if len(data) != _WITNESS_BYTES:
        findings.warning(
            "witness",
            f"{WITNESS_PATH} has {len(data)} bytes instead of {_WITNESS_BYTES}",
            path=WITNESS_PATH,
            offset=min(len(data), _WITNESS_BYTES),
            hint=_REWRITTEN,
        )
    for at in (0, half):
        record = data[at : at + RECORD_BYTES]
        if decode_record(record, salt) is None:
            # both are written at init, and each by one write, so neither is ever half written
            findings.warning(
                "witness",
                f"a record of {WITNESS_PATH} is damaged",
                path=WITNESS_PATH,
                offset=at,
                hint=_REWRITTEN,
            )
        if any(data[at + RECORD_BYTES : at + half]):
            findings.warning(
                "witness",
                f"{WITNESS_PATH} has bytes after a record",
                path=WITNESS_PATH,
                offset=at + RECORD_BYTES,
            )
