//! kube-proxy
