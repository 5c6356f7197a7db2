# Completion of `fdl` in fish: fdl completions fish | source

function __fdl_complete
    set -l words (commandline -opc)
    set -l typed (commandline -ct)
    # Assignments may stand in front of the command.
    while string match -qr '^\w+=' -- $words[1]
        set -e words[1]
    end
    set -l program fdl
    command -sq fdl; or set program (string replace -r '^~/' "$HOME/" -- $words[1])
    command -sq $program; or return
    set -e words[1]
    set -l word (string unescape -- $typed; or string unescape -- $typed\"; or string unescape -- $typed\'; or echo $typed)
    set -l lines (command $program __complete fish -- $words "$word" </dev/null 2>/dev/null)
    if string match -q ':files*' -- $lines[1]
        __fdl_files "$word" (string replace -r '^:files\t?' '' -- $lines[1])
        set -e lines[1]
    end
    set -q lines[1]; and printf '%s\n' $lines
end

# The files that begin like a word; the second argument is the folder they are seen from.
function __fdl_files
    set -l prefix (string match -r '^-[^=]*=' -- $argv[1])
    set -l path (string replace -- "$prefix" '' $argv[1])
    set -l start
    if string match -q '~/*' -- $path
        set start $HOME/
        set prefix "$prefix~/"
        set path (string sub -s 3 -- $path)
    else if test -n "$argv[2]"; and not string match -q '/*' -- $path
        set start $argv[2]/
    end
    for found in "$start$path"*
        test -d "$found"; and set found $found/
        echo "$prefix"(string sub -s (math (string length -- "$start") + 1) -- $found)
    end
end

complete --command fdl --erase
complete --command fdl --no-files --arguments '(__fdl_complete)'
