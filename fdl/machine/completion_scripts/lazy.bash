_fdl_first() {
    local script program=${1/#\~\//"$HOME"/}
    type -P fdl >/dev/null && program=fdl
    script=$(command "$program" completions bash 2>/dev/null </dev/null) || return
    eval "$script" && _fdl "$@"
}
complete -F _fdl_first fdl
