"""Backups: copies of the data directory of a serving broker, in a directory or in a bucket.

    backup.json      the position up to which the copy has the log; paths, sizes and checksums of all files
    log/             the segments up to that position, gap files, snapshots
    timers/          the sorted tables that were current at that position

A directory has these files, and a bucket these objects, under the same names. So the files of one can be copied to the
other by any program. `backup.json` is written last: without it, a backup is not complete, and is refused.

    manifest.py      backup.json
    sources.py       the files of the broker, as far as they belong to a copy
    new_directory.py a data directory or a backup that is being written
    directory.py     a backup in a directory, and its restore
    bucket.py        a backup in a bucket, and its restore

The broker names a position that it has written, with the segments and tables of that moment, and keeps the segments
from removal while they are copied (`bridge/http/api/backups.py`). Sealed segments and tables never change. Of the
newest segment only the bytes below the position are copied. So the copy is what a crash at that moment would have left,
without a torn end. Neither checkpoint nor indexes are copied: the first start builds them again from the log.
"""
