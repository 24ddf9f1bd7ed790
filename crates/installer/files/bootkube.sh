#!/bin/sh
# Waits for the API server that the static pods make, gives it every manifest, and waits for the masters.
# Each stage leaves a mark, so a restart goes on where the last run stopped; every step may be repeated.
set -eu

client=${KELSON_CLIENT:-/usr/local/bin/kelson}
assets=${ASSET_DIR:-/opt/openshift}
marks=${assets}/.done
mkdir -p "${marks}"

stage() {
    name=$1
    shift
    if [ -e "${marks}/${name}" ]; then
        return 0
    fi
    echo "bootkube: ${name}"
    "$@"
    : > "${marks}/${name}"
}

# until_true SECONDS WHAT COMMAND...
until_true() {
    left=$1
    what=$2
    shift 2
    until "$@" > /dev/null 2>&1; do
        left=$((left - 2))
        if [ "${left}" -le 0 ]; then
            echo "bootkube: ${what}: not within the time given; the last answer was:" >&2
            "$@" >&2 || true
            return 1
        fi
        sleep 2
    done
}

wait_for_api() {
    until_true 1200 "the API server is not ready" "${client}" get --raw=/readyz
}

apply_definitions() {
    for file in "${assets}"/manifests/00_crd_*.yaml; do
        until_true 120 "cannot apply ${file}" "${client}" apply --server-side --force-conflicts -f "${file}"
    done
    until_true 120 "definitions are not served" \
        "${client}" wait --for=condition=Established crd --all --timeout=10s
}

# What is there already stays: operators may have changed it since the last run.
create_once() {
    if "${client}" get -f "$1" > /dev/null 2>&1; then
        return 0
    fi
    "${client}" apply --server-side -f "$1"
}

apply_manifests() {
    for file in "${assets}"/manifests/*.y*ml "${assets}"/manifests/*.json \
                "${assets}"/openshift/*.y*ml "${assets}"/openshift/*.json; do
        case "${file}" in
            */00_crd_*|*'*'*) continue ;;
        esac
        until_true 300 "cannot apply ${file}" create_once "${file}"
    done
}

# Creating an object drops its status, so it is sent a second time, to the status subresource.
apply_status() {
    for file in "${assets}"/status/*.json; do
        [ -e "${file}" ] || continue
        object=$(basename "${file}" .json)
        until_true 120 "cannot set the status of ${object}" \
            "${client}" patch "${object%_*}" "${object##*_}" --subresource=status --type=merge --patch-file="${file}"
    done
}

enough_masters() {
    nodes=$("${client}" get nodes --selector=node-role.kubernetes.io/master --output=name | wc -l)
    [ "${nodes}" -ge "${CONTROL_PLANE_REPLICAS:-3}" ]
}

wait_for_masters() {
    until_true 1800 "not all masters have registered" enough_masters
}

stage wait-for-api wait_for_api
stage definitions apply_definitions
stage manifests apply_manifests
stage status apply_status
stage masters wait_for_masters
: > "${assets}/.bootkube.done"
echo "bootkube: done"
