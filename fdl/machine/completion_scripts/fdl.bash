# Completion of `fdl` in bash 4 or newer: eval "$(fdl completions bash)"

# Splits the line up to the cursor as bash does, expanding nothing. Sets, for _fdl: `words` (those
# before the cursor's), `word` (the cursor's, without quotes), `quote` (the one still open), and
# `cut` (how much of `word` readline keeps, because it takes what follows a word break, `=` or `:`,
# for a word of its own).
_fdl_split() {
    local line=$1 breaks=${COMP_WORDBREAKS//[[:space:]\"\']/} char='' started='' outside=0 i
    words=() word='' quote='' cut=0
    for ((i = 0; i < ${#line}; i++)); do
        char=${line:i:1}
        case $quote$char in
        \'\' | \"\")
            quote='' cut=$outside
            ;;
        \"\\)
            char=${line:i+1:1}
            case $char in
            [\"\\\$\`]) word+=$char && ((i += 1)) ;;
            *) word+=\\ ;;
            esac
            ;;
        \'? | \"?)
            word+=$char
            ;;
        \' | \")
            quote=$char started=1 outside=$cut cut=${#word}
            ;;
        \\)
            ((i += 1))
            word+=${line:i:1} started=1
            ;;
        [[:space:]])
            [[ $started ]] && words+=("$word")
            word='' started='' cut=0
            ;;
        *)
            word+=$char started=1
            [[ $breaks == *"$char"* ]] && cut=${#word}
            ;;
        esac
    done
}

# Sets `quoted` to what stands for a text on the line, given the quote that is open there.
_fdl_quote() {
    local text=$1 single="'\\''"
    case $quote in
    \') quoted=${text//\'/"$single"} ;;
    \")
        quoted=${text//\\/\\\\}
        quoted=${quoted//\"/\\\"}
        quoted=${quoted//\$/\\\$}
        quoted=${quoted//\`/\\\`}
        ;;
    *)
        quoted=$text
        [[ $text == *[^A-Za-z0-9_@%+=:,./-]* ]] && printf -v quoted %q "$text"
        ;;
    esac
}

# Adds the files that begin like the word to `lines`; `$1` is the folder they are seen from.
_fdl_files() {
    local folder=$1 prefix='' path start=''
    [[ $word == -*=* ]] && prefix=${word%%=*}=
    path=${word:${#prefix}}
    if [[ ! $folder || $path == [/~]* ]]; then
        if ((${#lines[@]} == 0 && ${#prefix} <= cut)); then
            # Alone, they are readline's own business, which knows more about them.
            compopt -o default -o bashdefault
            return
        fi
    else
        start=$folder/
    fi
    while IFS= read -r path; do
        [[ -d $path ]] && path+=/
        lines+=("$prefix${path:${#start}}")
    done < <(compgen -f -- "$start$path")
    [[ ${#lines[@]} -eq 1 && ${lines[0]} == */ ]] && compopt -o nospace
}

_fdl() {
    local IFS=$' \t\n' program=fdl words word quote quoted cut line folder
    local -a lines
    type -P fdl >/dev/null || program=${1/#\~\//"$HOME"/}
    _fdl_split "${COMP_LINE:0:COMP_POINT}"
    mapfile -t lines < <(
        command "$program" __complete bash -- "${words[@]:1}" "$word" </dev/null 2>/dev/null
    )
    if [[ ${lines[0]-} == :files* ]]; then
        folder=${lines[0]#:files}
        lines=("${lines[@]:1}")
        _fdl_files "${folder#$'\t'}"
    fi
    COMPREPLY=()
    for line in "${lines[@]}"; do
        _fdl_quote "${line:cut}"
        COMPREPLY+=("$quoted")
    done
}

complete -F _fdl fdl
