//! An API server over a store in memory, for trying things: `serve DIR [PORT]` writes `DIR/kubeconfig` and serves
//! until it is interrupted.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use apiserver::config::{Advertise, KeyPair, KubeletConfig, RequestHeaderConfig};
use apiserver::{ApiServer, Config};
use lifecycle::Tasks;
use pki::table::names;
use pki::{Algorithm, ClusterPki, ClusterSpec};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("usage: serve DIR [PORT]")?;
    let port: u16 = arguments.next().map_or(Ok(0), |text| text.parse())?;
    telemetry::log_to_stderr("info,apiserver=debug");
    let spec = ClusterSpec {
        node_name: "local".to_owned(),
        node_ips: vec!["127.0.0.1".parse()?],
        service_ips: vec!["172.30.0.1".parse()?],
        api_sans: vec!["localhost".to_owned(), "127.0.0.1".to_owned()],
        cluster_domain: "cluster.local".to_owned(),
        algorithm: Algorithm::EcdsaP256,
    };
    let pki = ClusterPki::ensure(&Path::new(&dir).join("pki"), &spec)?;
    let pair = |name: &str| -> Result<KeyPair, pki::PkiError> {
        let pair = pki.pair(name)?;
        Ok(KeyPair { certificate: pair.certificate_pem().into_bytes(), key: pair.key_pem().into_bytes() })
    };
    let tasks = Tasks::new();
    let store = etcd::open(etcd::Config::default(), &tasks)?;
    let mut config = Config::new(store, pair(names::APISERVER)?);
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    let address = listener.local_addr()?;
    config.listeners.push(listener);
    config.client_ca = Some(pair(names::CLIENT_CA)?.certificate);
    config.request_header = Some(RequestHeaderConfig {
        ca: pair(names::FRONT_PROXY_CA)?.certificate,
        allowed_names: vec![names::FRONT_PROXY_CLIENT.to_owned()],
        username_headers: vec!["X-Remote-User".to_owned()],
        uid_headers: vec!["X-Remote-Uid".to_owned()],
        group_headers: vec!["X-Remote-Group".to_owned()],
        extra_prefixes: vec!["X-Remote-Extra-".to_owned()],
    });
    config.proxy_client = Some(pair(names::FRONT_PROXY_CLIENT)?);
    config.service_accounts.signing_key = Some(pki.service_account().to_pem().into_bytes());
    config.kubelet =
        KubeletConfig { client: Some(pair(names::APISERVER_KUBELET_CLIENT)?), ..KubeletConfig::default() };
    config.service_cidrs = vec!["172.30.0.0/16".parse()?];
    config.advertise = Some(Advertise { address: "192.0.2.1".parse()?, port: address.port() });
    let _server = ApiServer::start(config, &tasks).await?;
    let kubeconfig = Path::new(&dir).join("kubeconfig");
    pki.kubeconfig(names::ADMIN, "local", &format!("https://{address}"))?.write(&kubeconfig)?;
    println!("export KUBECONFIG={}", kubeconfig.display());
    tokio::signal::ctrl_c().await?;
    tasks.drain(Duration::from_secs(15)).await;
    Ok(())
}
