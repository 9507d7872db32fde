"""Words of SQL, in lower case, by what they do."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


READING = frozenset({"select", "with", "values", "table", "explain", "show", "describe", "desc"})
"""Words that a statement which reads begins with."""

WRITING = _words(
    "insert update delete merge upsert replace drop alter create truncate rename grant revoke call do exec execute"
    " prepare deallocate copy load unload attach detach pragma vacuum reindex analyze analyse cluster refresh lock"
    " unlock set reset begin commit rollback savepoint declare fetch listen notify into outfile dumpfile infile"
    " import export kill shutdown use handler install uninstall comment security checkpoint discard reassign"
)
"""Words that no statement which reads holds outside of quotes; `replace(` is a function and is let through."""

FUNCTIONS = _words(
    "pg_sleep sleep benchmark pg_read_file pg_read_binary_file pg_ls_dir pg_write_file lo_import lo_export dblink"
    " dblink_exec load_file load_extension xp_cmdshell sp_executesql sp_oacreate openrowset opendatasource"
    " query_to_xml pg_terminate_backend pg_cancel_backend set_config nextval setval writefile readfile edit"
    " pg_advisory_lock pg_logical_emit_message txid_current utl_http utl_file dbms_lock sys_exec sys_eval"
)
"""Functions that write, wait, reach files or other machines."""

FROM_WITHIN = frozenset({"extract", "substring", "trim", "overlay", "position"})
"""Functions whose arguments may hold a FROM."""

CLAUSES = _words(
    "where join inner left right full outer cross natural on using group order having limit offset union intersect"
    " except window for fetch qualify lateral tablesample"
)
"""Words that may follow a table and are no other name for it."""
