"""Transactions that commit together with a database of the user.

The database decides: its commit writes the outcome of the prepared transaction as a row. The steps,
and what a crash leaves behind each, are in docs/design/transactions, "Prepared transactions".

Contents:

    kinds       SQLite, PostgreSQL and DuckDB: what the protocol needs of each
    together    DatabaseTransaction: a block that ends both; Outcomes: asking, and deleting rows
"""
