#compdef txlog
# completion of txlog for zsh: made by `txlog completion show zsh`
_txlog() {
    local line word
    local -a found files
    while IFS= read -r line; do
        word=${line%%$'\t'*}
        if [[ $word == :files ]]; then
            files=(yes)
        elif [[ $line == *$'\t'* ]]; then
            found+=("${word//:/\\:}:${line#*$'\t'}")
        else
            found+=("${word//:/\\:}")
        fi
    done < <("${(Q)words[1]}" __complete "${(Q)words[@]:1:$((CURRENT - 1))}" 2>/dev/null)
    (( ${#found} )) && _describe -V txlog found
    (( ${#files} )) && _files
    return 0
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _txlog "$@"
else
    compdef _txlog txlog
fi
