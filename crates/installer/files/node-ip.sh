#!/bin/sh
# Waits until the address in KUBELET_NODE_IP belongs to an interface; gives up after five minutes.
set -eu

have_address() {
    if [ -n "${KUBELET_NODE_IP_HEX:-}" ]; then
        grep -qi "^${KUBELET_NODE_IP_HEX} " /proc/net/if_inet6
    else
        # Local addresses of all tables; the dots are literal in -F.
        grep -qFw "${KUBELET_NODE_IP}" /proc/net/fib_trie
    fi
}

tries=0
until have_address; do
    tries=$((tries + 1))
    if [ "${tries}" -ge 300 ]; then
        echo "no interface has ${KUBELET_NODE_IP}; check nodes.yaml and the network of this machine" >&2
        exit 1
    fi
    sleep 1
done
echo "this machine has ${KUBELET_NODE_IP}"
