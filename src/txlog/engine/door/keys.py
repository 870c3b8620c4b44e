"""Transaction keys: connecting one, which fences its previous holder; finding and deleting one."""

from txlog.engine.decide.transactions.keys import (
    KeyConnection,
    KeyedTxn,
    Owner,
    check_key,
    delete,
    find_owner,
    home,
    living,
)
from txlog.engine.folds.transaction_key import Key, find
