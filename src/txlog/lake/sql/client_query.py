"""Owns Query: SQL over the store of a client. The client takes Query and Where from here."""

from __future__ import annotations

from collections.abc import Mapping

from txlog.client.client import Client
from txlog.lake.sql.lists import listed
from txlog.lake.sql.query import SqlQuery
from txlog.lake.sql.where import Where

__all__ = ["Query", "Where"]


class Query(SqlQuery):
    """A SqlQuery over the store of a client, with the relations of `lists`."""

    def __init__(
        self,
        client: Client,
        sql: str,
        parameters: Mapping[str, object] | None = None,
        isolation: str = "committed",
        *,
        skip_unavailable: bool = False,
        this: str | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        super().__init__(
            client,
            listed,
            sql,
            parameters,
            isolation,
            skip_unavailable=skip_unavailable,
            this=this,
            memory_bytes=memory_bytes,
        )
