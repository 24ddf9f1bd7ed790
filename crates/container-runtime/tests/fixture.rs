//! A runtime in a directory of its own, and short words for pods.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use container_runtime::image::registry::Registries;
use container_runtime::{Config, Runtime};
use cri::{
    ContainerConfig, ContainerMetadata, ContainerState, ContainerStatus, ImageSpec, NamespaceMode,
    PodSandboxConfig, PodSandboxMetadata, RuntimeService,
};
use futures::StreamExt;

/// A test.
pub type Test = for<'a> fn(&'a Fixture) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Makes a table of tests.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub const TESTS: &[(&str, $crate::fixture::Test)] =
            &[$((concat!(module_path!(), "::", stringify!($name)), |fixture| Box::pin($name(fixture)))),*];
    };
}

pub const DEADLINE: Duration = Duration::from_secs(10);

pub struct Fixture {
    pub directory: tempfile::TempDir,
    pub runtime: Arc<Runtime>,
}

/// What is said of registries, in files that a test may write.
pub fn registries(directory: &std::path::Path) -> Registries {
    Registries {
        file: directory.join("registries.conf"),
        directory: directory.join("registries.conf.d"),
        certificates: vec![directory.join("certs.d")],
        auth_file: Some(directory.join("auth.json")),
    }
}

pub fn config(directory: &std::path::Path) -> Config {
    Config {
        root_dir: directory.join("root"),
        state_dir: directory.join("state"),
        // Of the whole path: tests run side by side.
        cgroup_root: format!("/kelson-test{}", directory.to_string_lossy().replace(['/', '.'], "-")),
        network: Arc::new(cni::HostOnly),
        shim_exe: std::env::current_exe().unwrap(),
        version: "test".into(),
        additions: Default::default(),
        registries: registries(directory),
    }
}

impl Fixture {
    pub async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let runtime = Runtime::open(config(directory.path())).await.unwrap();
        Self { directory, runtime }
    }

    /// Another runtime on the same directories, as after a restart.
    pub async fn reopened(&self) -> Arc<Runtime> {
        self.runtime.close().await;
        Runtime::open(config(self.directory.path())).await.unwrap()
    }

    pub fn sandbox_config(&self, name: &str) -> PodSandboxConfig {
        let mut config = PodSandboxConfig {
            metadata: PodSandboxMetadata {
                name: name.into(),
                namespace: "test".into(),
                uid: name.into(),
                attempt: 0,
            },
            hostname: name.into(),
            log_directory: self.directory.path().join("logs"),
            dns_config: Some(cri::DnsConfig {
                servers: vec!["10.0.0.10".into()],
                searches: vec!["test.local".into()],
                options: vec!["ndots:5".into()],
            }),
            ..Default::default()
        };
        config.linux.security_context.namespace_options.pid = NamespaceMode::Container;
        config
    }

    pub fn container_config(&self, args: &[&str]) -> ContainerConfig {
        let mut config = ContainerConfig {
            metadata: ContainerMetadata { name: "main".into(), attempt: 0 },
            image: ImageSpec::from("kelson.local/demo"),
            args: args.iter().map(ToString::to_string).collect(),
            log_path: PathBuf::from("main.log"),
            ..Default::default()
        };
        config.linux.security_context.namespace_options.pid = NamespaceMode::Container;
        config
    }

    pub async fn sandbox(&self) -> String {
        self.runtime.run_pod_sandbox(&self.sandbox_config("pod")).await.unwrap()
    }

    /// Starts a container in a new pod. Gives the ids of both.
    pub async fn run(&self, config: &ContainerConfig) -> (String, String) {
        let sandbox = self.sandbox().await;
        let container = self.run_in(&sandbox, config).await;
        (sandbox, container)
    }

    pub async fn run_in(&self, sandbox: &str, config: &ContainerConfig) -> String {
        let sandbox_config = self.sandbox_config("pod");
        let id = self.runtime.create_container(sandbox, config, &sandbox_config).await.unwrap();
        self.runtime.start_container(&id).await.unwrap();
        id
    }

    /// Waits for the end of a container.
    pub async fn ended(&self, id: &str) -> ContainerStatus {
        ended(&self.runtime, id).await
    }

    /// Runs a container to its end in a new pod. Gives how it ended and the text of its log.
    pub async fn outcome(&self, config: &ContainerConfig) -> (ContainerStatus, String) {
        let (_, id) = self.run(config).await;
        let status = self.ended(&id).await;
        (status, self.log_text("main.log"))
    }

    pub fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.directory.path().join("logs").join(name)).unwrap_or_default()
    }

    /// The log without its prefixes.
    pub fn log_text(&self, name: &str) -> String {
        let lines = self.log(name);
        lines.lines().map(|line| format!("{}\n", line.splitn(4, ' ').nth(3).unwrap_or_default())).collect()
    }

    pub async fn exec(&self, id: &str, command: &[&str]) -> (i32, String, String) {
        let command: Vec<String> = command.iter().map(ToString::to_string).collect();
        let output = self.runtime.exec_sync(id, &command, DEADLINE).await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.exit_code, text(&output.stdout), text(&output.stderr))
    }

    /// Prints what the shims have to say.
    pub fn explain(&self) {
        for entry in std::fs::read_dir(self.directory.path().join("state")).into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(entry.path().join("shim.log")).unwrap_or_default();
            print!("{text}");
        }
    }

    /// Removes everything, with a runtime of its own: the test may have closed the first one.
    pub async fn finish(self) {
        let last = self.reopened().await;
        last.purge().await.unwrap();
        last.close().await;
    }
}

pub async fn ended(runtime: &Runtime, id: &str) -> ContainerStatus {
    let waiting = async {
        let mut events = runtime.events().await.unwrap();
        loop {
            let status = runtime.container_status(id).await.unwrap();
            if status.state == ContainerState::Exited {
                return status;
            }
            events.next().await;
        }
    };
    tokio::time::timeout(DEADLINE, waiting).await.expect("the container ends")
}

/// Asks until it is so.
pub async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        let mut tick = tokio::time::interval(Duration::from_millis(10));
        while !is_so() {
            tick.tick().await;
        }
    };
    tokio::time::timeout(DEADLINE, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}
