_fdl() {
    local script program=${(Q)words[1]/#\~\//$HOME/}
    whence -p fdl >/dev/null && program=fdl
    script=$(command $program completions zsh 2>/dev/null </dev/null) || return
    eval "$script" && _fdl "$@"
}
_fdl_register() {
    add-zsh-hook -d precmd _fdl_register
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
    compdef _fdl fdl
}
autoload -Uz add-zsh-hook && add-zsh-hook precmd _fdl_register
