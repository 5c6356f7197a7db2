function __fdl_first
    set -l program fdl
    command -sq fdl; or set program (string replace -r '^~/' "$HOME/" -- (commandline -opc)[1])
    command -sq $program; or return
    command $program completions fish 2>/dev/null </dev/null | source
    functions -q __fdl_complete; and __fdl_complete
end
complete --command fdl --no-files --arguments '(__fdl_first)'
