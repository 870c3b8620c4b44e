# completion of txlog for bash: made by `txlog completion show bash`
_txlog() {
    local line=${COMP_LINE:0:COMP_POINT} word kept="" one
    local -a files=()
    # readline divides words at colons and equal signs and replaces what stands behind the last.
    word=${line##*[[:space:]]}
    [[ $word == *[:=]* ]] && kept=${word%"${word##*[:=]}"}
    COMPREPLY=()
    while IFS= read -r one; do
        one=${one%%$'\t'*}
        if [[ $one == :files ]]; then
            compopt -o filenames 2>/dev/null
            mapfile -t files < <(compgen -f -- "${word#"$kept"}")
            COMPREPLY+=("${files[@]}")
        else
            COMPREPLY+=("${one#"$kept"}")
        fi
    done < <("${COMP_WORDS[0]}" __complete --line "$line" 2>/dev/null)
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=,/] ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -F _txlog txlog
