//! The official Python client, over TLS. Skipped where it is not installed; `KELSON_PYTHON` names an interpreter that has it.

use std::process::Command;

use crate::harness::Server;

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_works() {
    let python = std::env::var("KELSON_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let installed = Command::new(&python).args(["-c", "import kubernetes"]).output();
    let is_found = installed.is_ok_and(|output| output.status.success());
    if !testing::found(
        "python",
        is_found,
        "there is none with the package kubernetes (KELSON_PYTHON names one)",
    ) {
        return;
    }
    let server = Server::start().await;
    let mut command = Command::new(python);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client.py")).arg(&server.kubeconfig);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout.ends_with(b"all good\n"), "{said}");
    server.stop().await;
}
