"""The reference of flodl's classes and functions, read off its source.

Nothing is imported: files are parsed, so torch need not be installed and nothing in them runs.
"""

from fdl.scaffold.api_ref.scan import (
    Entry as Entry,
    Reference as Reference,
    Signature as Signature,
    find as find,
    scan as scan,
)
from fdl.scaffold.api_ref.select import (
    as_json as as_json,
    as_list as as_list,
    as_text as as_text,
    public as public,
    select as select,
)
