# SPDX-License-Identifier: GPL-2.0-or-later
"""The report's numbers by DuckDB, which spills to disk: for files whose jobs do not fit into memory. World room."""

from guard.base.faults import NodeFault, SiteFault
from guard.report import sql, tally

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def result(paths: "list[str]", since_ns: int, by: str) -> "dict[str, Any]":
    """What Tally.result gives, from the same files. Raises: SiteFault(duckdb-missing), NodeFault(duckdb-failed)."""
    try:
        import duckdb
    except ImportError:
        raise SiteFault("duckdb-missing")
    connection = duckdb.connect(":memory:")
    try:
        connection.execute(sql.RECORDS, [paths, since_ns])
        connection.execute(sql.SAID)
        total = _rows(connection, sql.TOTALS)[0]
        reports, loss_nodes, dropped = connection.execute(sql.LOSSES).fetchall()[0]
        ((unended,),) = connection.execute(sql.UNENDED).fetchall()
        return {
            "records": total["records"],
            "bad_lines": total["bad_lines"],
            "first_ns": total["first_ns"],
            "last_ns": total["last_ns"],
            "by": by,
            "jobs": {
                "relayed": total["relayed"],
                "nodes": total["nodes"],
                "reloaded": total["reloaded"],
                "failed": total["failed"],
                "affected": total["affected"],
                "share": tally.share(total["affected"], total["relayed"]),
                "unended": unended,
            },
            "reloads": _rows(connection, sql.RELOADS),
            "failures": _rows(connection, sql.FAILURES),
            "skipped": _rows(connection, sql.SKIPPED),
            "groups": _groups(connection, by),
            "days": sorted(_groups(connection, "day"), key=lambda row: str(row["key"])),
            "worst_nodes": tally.worst(_groups(connection, "node")),
            "losses": {
                "reports": int(reports),
                "nodes": loss_nodes,
                "records_at_least": int(dropped),
                "doubtful_lines": total["doubtful_lines"],
            },
        }
    except duckdb.Error as error:
        raise NodeFault("duckdb-failed", str(error)[:500])
    finally:
        connection.close()


def _groups(connection: "Any", by: str) -> "list[dict[str, Any]]":
    return _rows(connection, sql.GROUPS.format(key=sql.KEYS[by]))


def _rows(connection: "Any", query: str) -> "list[dict[str, Any]]":
    answer = connection.execute(query)
    names = [column[0] for column in answer.description]
    return [dict(zip(names, row)) for row in answer.fetchall()]
