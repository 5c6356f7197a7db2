#compdef fdl
# Completion of `fdl` in zsh: eval "$(fdl completions zsh)", or a file `_fdl` in a folder of $fpath.

_fdl() {
    local program=fdl line value folder
    local -i files=0 found=1
    local -a lines shown
    whence -p fdl >/dev/null || program=${(Q)words[1]/#\~\//$HOME/}
    lines=("${(@f)$(
        command $program __complete zsh -- "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" \
            </dev/null 2>/dev/null
    )}")
    if [[ $lines[1] == :files* ]]; then
        files=1 folder=${${lines[1]#:files}#$'\t'}
        shift lines
    fi
    for line in "${(@)lines:#}"; do
        # A colon separates value and description, so those of the value are escaped.
        value=${${${line%%$'\t'*}//\\/\\\\}//:/\\:}
        [[ $line == *$'\t'* ]] && value+=:${line#*$'\t'}
        shown+=("$value")
    done
    (( $#shown )) && _describe -t values fdl shown && found=0
    if (( files )); then
        [[ $PREFIX == -*=* ]] && compset -P 1 '*='
        if [[ -n $folder && $PREFIX != [/~]* ]]; then
            # Of names that begin with dots, _files would forget the folder.
            while compset -P './' || { compset -P '../' && folder+=/.. }; do :; done
            _files -W $folder && found=0
        else
            _files && found=0
        fi
    fi
    return found
}

if [[ ${zsh_eval_context[-1]} == loadautofunc ]]; then
    _fdl "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
    compdef _fdl fdl
fi
