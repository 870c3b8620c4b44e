"""Programs that tests run as processes of their own; `tests.harness` starts and kills them."""
