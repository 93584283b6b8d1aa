# SPDX-License-Identifier: GPL-2.0-or-later
"""The report's numbers as SQL over the same files; DuckDB's dialect, and docs/report.md shows it to sites. Pure."""

from guard.base import guard_line

# What is read of a record. What a column does not find is NULL; a line that is no JSON is a row of NULLs.
COLUMNS = """{
  type: 'VARCHAR', time: 'BIGINT', body: 'VARCHAR',
  slurm: 'STRUCT(cluster VARCHAR, node VARCHAR, job_id BIGINT, sluid VARCHAR, user_name VARCHAR, restart_count BIGINT)',
  scraper: 'STRUCT(dropped BIGINT, doubtful BOOLEAN)'
}"""

# ? twice: the list of files, the first time that counts (nanoseconds since the epoch).
RECORDS = f"""
CREATE TEMP TABLE lines AS
SELECT
  CASE WHEN time IS NULL OR slurm.node IS NULL THEN NULL ELSE type END AS type,
  time, body, scraper,
  slurm.node AS node,
  slurm.user_name AS user_name,
  slurm.restart_count AS restart_count,
  slurm.cluster || ' ' || coalesce(nullif(slurm.sluid, ''), CAST(slurm.job_id AS VARCHAR)) AS job
FROM read_ndjson(?, columns = {COLUMNS}, ignore_errors = true, maximum_object_size = 16777216)
WHERE time IS NULL OR time >= ?
"""

SAID = f"""
CREATE TEMP TABLE said AS
WITH text AS (
  SELECT *, CASE WHEN ends_with(body, chr(10)) THEN left(body, -1) ELSE body END AS line FROM lines
  WHERE type = 'log' AND starts_with(body, 'eessi-arch-guard: ')
), found AS (
  SELECT *,
    regexp_extract(line, '{guard_line.RELOADED}', ['count', 'at', 'was', 'now']) AS reload,
    regexp_extract(line, '{guard_line.FAILED}', ['at', 'was', 'now', 'sentence']) AS failure
  FROM text
)
SELECT job, node, coalesce(user_name, 'unknown') AS user_name,
  strftime(make_timestamp(time // 1000), '%Y-%m-%d') AS day,
  CASE WHEN reload.now <> '' THEN 'reloaded' WHEN failure.now <> '' THEN 'failed' ELSE 'skipped' END AS kind,
  CASE WHEN reload.now <> '' THEN reload.was ELSE failure.was END AS was,
  CASE WHEN reload.now <> '' THEN reload.now ELSE failure.now END AS now,
  CASE WHEN reload.now <> '' THEN ''
       WHEN failure.now = '' THEN substr(line, length('eessi-arch-guard: skipped, ') + 1)
       WHEN contains(failure.now, '/') THEN '{guard_line.MISSING}'
       ELSE failure.now END AS reason
FROM found
WHERE reload.now <> '' OR failure.now <> '' OR starts_with(line, 'eessi-arch-guard: skipped, ')
"""

TOTALS = """
SELECT
  count(*) FILTER (type IS NOT NULL) AS records,
  count(*) FILTER (type IS NULL) AS bad_lines,
  coalesce(min(time) FILTER (type IS NOT NULL), 0) AS first_ns,
  coalesce(max(time) FILTER (type IS NOT NULL), 0) AS last_ns,
  count(DISTINCT job) FILTER (type <> 'loss') AS relayed,
  count(DISTINCT node) FILTER (type <> 'loss') AS nodes,
  (SELECT count(DISTINCT job) FROM said WHERE kind = 'reloaded') AS reloaded,
  (SELECT count(DISTINCT job) FROM said WHERE kind = 'failed') AS failed,
  (SELECT count(DISTINCT job) FROM said WHERE kind <> 'skipped') AS affected,
  count(*) FILTER (type = 'log' AND scraper.doubtful) AS doubtful_lines
FROM lines
"""

UNENDED = """
SELECT count(*) FROM (
  SELECT job, node, coalesce(restart_count, 0) AS run
  FROM lines WHERE type IN ('job_start', 'job_end')
  GROUP BY ALL
  HAVING sum(CASE type WHEN 'job_start' THEN 1 ELSE -1 END) > 0
)
"""

LOSSES = """
SELECT coalesce(sum(reports), 0), count(*), coalesce(sum(dropped), 0) FROM (
  SELECT node, count(*) AS reports, coalesce(max(scraper.dropped), 0) AS dropped
  FROM lines WHERE type = 'loss' GROUP BY node
)
"""

RELOADS = """
SELECT was, now, count(*) AS lines, count(DISTINCT job) AS jobs, count(DISTINCT node) AS nodes
FROM said WHERE kind = 'reloaded' GROUP BY ALL ORDER BY jobs DESC, lines DESC, was, now
"""

FAILURES = """
SELECT was, reason, count(*) AS lines, count(DISTINCT job) AS jobs, count(DISTINCT node) AS nodes
FROM said WHERE kind = 'failed' GROUP BY ALL ORDER BY jobs DESC, lines DESC, was, reason
"""

SKIPPED = """
SELECT reason, count(*) AS lines, count(DISTINCT job) AS jobs, count(DISTINCT node) AS nodes
FROM said WHERE kind = 'skipped' GROUP BY ALL ORDER BY jobs DESC, lines DESC, reason
"""

# {key} is one of KEYS.
GROUPS = """
SELECT {key} AS key,
  count(DISTINCT job) FILTER (kind = 'reloaded') AS reloaded_jobs,
  count(DISTINCT job) FILTER (kind = 'failed') AS failed_jobs,
  count(DISTINCT job) FILTER (kind = 'skipped') AS skipped_jobs,
  count(*) AS lines
FROM said GROUP BY key ORDER BY failed_jobs DESC, reloaded_jobs DESC, key
"""
KEYS = {
    "target": "CASE WHEN was = '' THEN 'unknown' ELSE was || '->' || now END",
    "reason": "CASE WHEN reason = '' THEN 'reloaded' ELSE reason END",
    "node": "node",
    "user": "user_name",
    "day": "day",
}
