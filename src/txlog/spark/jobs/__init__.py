"""Jobs as programs for spark-submit: `main(argv) -> int`, the same as `txlog job NAME`.

    spark-submit PACKAGE/spark/jobs/audit.py -S STORE orders

The engine is Spark unless --engine says otherwise, and the master is spark-submit's.

Contents:

    audit             `txlog job audit`
    bulk_load         `txlog job bulk-load`
    compact           `txlog job compact`
    lateness          `txlog job lateness`
    rebuild_delayed   `txlog job rebuild-delayed`
    replay            `txlog job replay`
"""
