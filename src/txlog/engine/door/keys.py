"""Transaction keys: connecting one, which fences its previous holder, and listing them."""

from txlog.engine.decide.transactions.keys import (
    Connected,
    Opened,
    Owner,
    check_key,
    delete,
    find_owner,
    home,
    living,
)
from txlog.engine.folds.transaction_key import Key, find
