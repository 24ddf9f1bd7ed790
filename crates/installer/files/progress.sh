#!/bin/sh
# Tells `kelson wait-for bootstrap-complete`, through a ConfigMap, that the masters carry the cluster.
set -eu

client=${KELSON_CLIENT:-/usr/local/bin/kelson}
assets=${ASSET_DIR:-/opt/openshift}
ready='{{range .items}}{{range .status.conditions}}{{if and (eq .type "Ready") (eq .status "True")}}ready{{"\n"}}{{end}}{{end}}{{end}}'

while [ ! -e "${assets}/.bootkube.done" ]; do
    sleep 5
done

ready_masters() {
    "${client}" get nodes --selector=node-role.kubernetes.io/master --output=go-template="${ready}" | grep -c ready
}

until [ "$(ready_masters || echo 0)" -ge "${MASTERS_TO_COMPLETE:-2}" ]; do
    echo "waiting until ${MASTERS_TO_COMPLETE:-2} masters are ready"
    sleep 10
done

until "${client}" get configmap bootstrap --namespace=kube-system > /dev/null 2>&1; do
    "${client}" create configmap bootstrap --namespace=kube-system --from-literal=status=complete || sleep 5
done
echo "bootstrap is complete"
