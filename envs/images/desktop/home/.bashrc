# SPDX-License-Identifier: Apache-2.0
case $- in
*i*) ;;
*) return ;;
esac
PS1='\u@\h:\w\$ '
alias ls='ls --color=auto'
