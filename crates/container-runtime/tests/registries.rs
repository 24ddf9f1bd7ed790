//! Images over the network: from and to Debian's docker-registry, and from registries that lie.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use container_runtime::image::pull::{PullError, PullOptions, Puller};
use container_runtime::image::registry::{Limits, Registries};
use container_runtime::image::store::sha256;
use container_runtime::image::{ImageRecord, Reference, architecture, cli};
use cri::{AuthConfig, ImageService};
use serde_json::{Value, json};

use crate::fixture::{Fixture, registries};
use crate::images::{Entry, gzip, image_config, layer, zstd};

crate::tests![
    an_image_is_built_pushed_and_pulled_by_tag_and_digest,
    a_registry_with_tls_and_passwords_wants_both,
    a_token_is_fetched_with_the_credentials_of_the_image,
    a_mirror_is_asked_first_and_the_registry_after_it,
    an_index_gives_the_image_of_this_machine,
    a_broken_download_goes_on_where_it_ended,
    equal_pulls_are_one,
    what_a_registry_says_wrongly_is_refused,
    credentials_stay_with_their_registry,
    a_slow_or_endless_registry_is_left,
    a_pull_in_progress_survives_a_collection,
    an_exported_image_is_read_by_others,
];

/// Debian's registry, as a process of its own.
struct Registry {
    child: Child,
    address: String,
    _directory: tempfile::TempDir,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Registry {
    /// `None` where it is not installed. `more` is YAML under `http` and beside it.
    fn start(http: &str, more: &str) -> Option<Self> {
        let program = testing::program("docker-registry")?;
        let directory = tempfile::tempdir().unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let root = directory.path().join("data");
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage:\n  filesystem: {{rootdirectory: {}}}\n  delete: {{enabled: true}}\n\
             http:\n  addr: {address}\n{http}\n{more}\n",
            root.display()
        );
        let file = directory.path().join("config.yml");
        std::fs::write(&file, config).unwrap();
        let child = Command::new(program)
            .arg("serve")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let registry = Self { child, address, _directory: directory };
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(&registry.address).is_err() {
            assert!(Instant::now() < deadline, "the registry does not listen");
            std::thread::yield_now();
        }
        Some(registry)
    }
}

fn place(fixture: &Fixture) -> &Path {
    fixture.directory.path()
}

/// Says that these registries need no TLS.
fn insecure(fixture: &Fixture, hosts: &[&str]) {
    let entry = |host: &&str| format!("[[registry]]\nlocation = \"{host}\"\ninsecure = true\n");
    std::fs::write(registries(place(fixture)).file, hosts.iter().map(entry).collect::<String>()).unwrap();
}

/// Runs `kelson image …` on the store of the fixture, with its files about registries.
fn image(fixture: &Fixture, words: &[&str]) -> Result<String, String> {
    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        image: cli::ImageArgs,
    }
    let Registries { file, certificates, auth_file, .. } = registries(place(fixture));
    let auth_file = auth_file.unwrap();
    if !auth_file.exists() {
        std::fs::write(&auth_file, "{}").unwrap();
    }
    let common: Vec<String> = match words[0] {
        "pull" | "push" | "build" => vec![
            format!("--registries-conf={}", file.display()),
            format!("--cert-dir={}", certificates[0].display()),
            format!("--authfile={}", auth_file.display()),
        ],
        _ => Vec::new(),
    };
    let common: Vec<&str> = common.iter().map(String::as_str).collect();
    let cli = <Cli as clap::Parser>::try_parse_from([&["image"], words, &common].concat()).unwrap();
    let mut out = Vec::new();
    let outcome = cli.image.run(&place(fixture).join("root"), &mut out);
    outcome.map(|()| String::from_utf8(out).unwrap()).map_err(|error| telemetry::chain(&error).to_string())
}

fn context(fixture: &Fixture, containerfile: &str) -> PathBuf {
    let directory = place(fixture).join("context");
    std::fs::create_dir_all(directory.join("files/deep")).unwrap();
    std::fs::write(directory.join("files/a"), "one").unwrap();
    std::fs::write(directory.join("files/deep/b"), "two").unwrap();
    std::os::unix::fs::symlink("/etc/shadow", directory.join("files/link")).ok();
    std::fs::write(directory.join("Containerfile"), containerfile).unwrap();
    directory
}

async fn pull(fixture: &Fixture, name: &str, auth: Option<&AuthConfig>) -> Result<String, String> {
    let spec = cri::ImageSpec::from(name);
    let outcome = fixture.runtime.pull_image(&spec, auth, &Default::default()).await;
    outcome.map_err(|error| telemetry::chain(&error).to_string())
}

async fn an_image_is_built_pushed_and_pulled_by_tag_and_digest(fixture: &Fixture) {
    let Some(registry) = Registry::start("", "") else { return };
    let text = "FROM kelson.local/demo\nWORKDIR /srv\nCOPY --chown=7:8 files /data\nCOPY files/a renamed\n\
                ENV PATH=/x:$PATH\nUSER 12\nLABEL k=v\nCMD [\"cat\", \"/data/deep/b\"]\n";
    let directory = context(fixture, text);
    let name = format!("{}/team/app:1", registry.address);
    let built = image(fixture, &["build", directory.to_str().unwrap(), "-t", &name]).unwrap();
    assert!(built.starts_with("built "), "{built}");

    // Without a word in registries.conf a registry must speak TLS.
    let error = image(fixture, &["push", &name]).unwrap_err();
    assert!(error.contains("cannot reach"), "{error}");
    insecure(fixture, &[&registry.address]);
    let pushed = image(fixture, &["push", &name]).unwrap();
    let digest = pushed.trim().rsplit_once('@').unwrap().1.to_owned();
    assert!(!pushed.contains("packed anew"), "what was built is pushed as it is: {pushed}");

    let before = fixture.runtime.image_status(&name.as_str().into()).await.unwrap().unwrap();
    fixture.runtime.remove_image(&name.as_str().into()).await.unwrap();
    assert_eq!(pull(fixture, &name, None).await.unwrap(), before.id);
    let by_digest = format!("{}/team/app@{digest}", registry.address);
    let status = fixture.runtime.image_status(&by_digest.as_str().into()).await.unwrap().unwrap();
    assert_eq!(
        (status.id, status.repo_digests, status.uid),
        (before.id.clone(), vec![by_digest.clone()], Some(12))
    );

    fixture.runtime.remove_image(&name.as_str().into()).await.unwrap();
    assert_eq!(pull(fixture, &by_digest, None).await.unwrap(), before.id);
    let mut config = fixture.container_config(&[]);
    config.image = by_digest.as_str().into();
    let (status, log) = fixture.outcome(&config).await;
    assert_eq!((status.exit_code, log.contains("two")), (0, true), "{log}");

    let missing = format!("{}/team/app:none", registry.address);
    let error = pull(fixture, &missing, None).await.unwrap_err();
    assert!(error.contains("not found"), "{error}");
    // Another name, another registry's worth of blobs: the push of a pulled image packs its layers again.
    let copy = format!("{}/copy:1", registry.address);
    assert!(image(fixture, &["push", &by_digest, &copy]).unwrap().contains("packed anew"));
    image(fixture, &["pull", &copy, "--keep-layers"]).unwrap();
    let again = format!("{}/again:1", registry.address);
    assert!(!image(fixture, &["push", &copy, &again]).unwrap().contains("packed anew"));
}

/// A certificate authority and a server's certificate for 127.0.0.1, by openssl.
fn certificate(directory: &Path) -> Option<()> {
    let run = |words: &[&str]| {
        let done =
            Command::new(testing::program("openssl")?).args(words).current_dir(directory).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Some(())
    };
    let new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
    run(&[&["req", "-x509", "-subj", "/CN=test", "-keyout", "ca.key", "-out", "ca.pem"], &new[..]].concat())?;
    run(&[
        &["req", "-subj", "/CN=127.0.0.1", "-keyout", "tls.key", "-out", "tls.csr"],
        &new[..4],
        &["-nodes"],
    ]
    .concat())?;
    std::fs::write(directory.join("ext"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    run(&[
        "x509",
        "-req",
        "-in",
        "tls.csr",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-days",
        "2",
        "-extfile",
        "ext",
        "-out",
        "tls.pem",
    ])
}

async fn a_registry_with_tls_and_passwords_wants_both(fixture: &Fixture) {
    let place = place(fixture);
    let Some(()) = certificate(place) else { return };
    // bcrypt of "myPassword", the only form that the registry takes.
    let line = "user:$2y$05$c4WoMPo3SXsafkva.HHa6uXQZWr7oboPiC2bT/r7q1BB8I2s0BRqC\n";
    std::fs::write(place.join("htpasswd"), line).unwrap();
    let tls = format!("  tls: {{certificate: {0}/tls.pem, key: {0}/tls.key}}", place.display());
    let auth = format!("auth:\n  htpasswd: {{realm: r, path: {}/htpasswd}}", place.display());
    let Some(registry) = Registry::start(&tls, &auth) else { return };
    let directory = context(fixture, "FROM scratch\nCOPY files /\n");
    let name = format!("{}/app:1", registry.address);
    image(fixture, &["build", directory.to_str().unwrap(), "-t", &name]).unwrap();
    assert!(image(fixture, &["push", &name]).unwrap_err().contains("certificate"), "an unknown authority");
    let trusted = place.join("certs.d").join(&registry.address);
    std::fs::create_dir_all(&trusted).unwrap();
    std::fs::copy(place.join("ca.pem"), trusted.join("ca.crt")).unwrap();
    let error = image(fixture, &["push", &name]).unwrap_err();
    assert!(error.contains("401"), "{error}");
    let keys = json!({"auths": {&registry.address: {"username": "user", "password": "myPassword"}}});
    std::fs::write(registries(place).auth_file.unwrap(), keys.to_string()).unwrap();
    let pushed = image(fixture, &["push", &name]).unwrap();
    assert!(pushed.starts_with("pushed"), "{pushed}");

    fixture.runtime.remove_image(&name.as_str().into()).await.unwrap();
    std::fs::remove_file(registries(place).auth_file.unwrap()).unwrap();
    assert!(pull(fixture, &name, None).await.unwrap_err().contains("401"));
    let wrong = AuthConfig { username: "user".into(), password: "wrong".into(), ..AuthConfig::default() };
    assert!(pull(fixture, &name, Some(&wrong)).await.unwrap_err().contains("401"));
    let right =
        AuthConfig { username: "user".into(), password: "myPassword".into(), ..AuthConfig::default() };
    pull(fixture, &name, Some(&right)).await.unwrap();
}

// A registry that answers as a test wants.

#[derive(Clone, Debug, Default)]
struct Asked {
    method: String,
    path: String,
    headers: HashMap<String, String>,
}

/// What to answer: status line, headers and body, and how to go on.
#[derive(Clone, Default)]
struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// Ends the connection after so many bytes of the body.
    cut: Option<usize>,
    /// Sends a byte at a time, for ever.
    drip: bool,
    /// Sends without end.
    endless: bool,
}

impl Reply {
    fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self { status: 200, body: body.into(), ..Self::default() }
    }

    fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

type Handler = dyn Fn(&Asked) -> Reply + Send + Sync;

struct Fake {
    address: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    stop: Arc<AtomicBool>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.address);
    }
}

impl Fake {
    fn start(handler: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (asked, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let handler: Arc<Handler> = Arc::new(handler);
        {
            let (asked, stop) = (asked.clone(), stop.clone());
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let (asked, stop, handler) = (asked.clone(), stop.clone(), handler.clone());
                    std::thread::spawn(move || serve(stream, &asked, &stop, handler.as_ref()));
                }
            });
        }
        Self { address, asked, stop }
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn serve(stream: TcpStream, asked: &Mutex<Vec<Asked>>, stop: &AtomicBool, handler: &Handler) -> Option<()> {
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let mut line = String::new();
        reader.by_ref().take(8192).read_line(&mut line).ok().filter(|count| *count > 0)?;
        let mut words = line.split_whitespace();
        let mut request =
            Asked { method: words.next()?.to_owned(), path: words.next()?.to_owned(), ..Asked::default() };
        loop {
            let mut line = String::new();
            reader.by_ref().take(8192).read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim().split_once(':') else { break };
            request.headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        asked.lock().unwrap().push(request.clone());
        let reply = handler(&request);
        let mut head = format!("HTTP/1.1 {} X\r\n", reply.status);
        for (name, value) in &reply.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !reply.endless && !reply.drip {
            head.push_str(&format!("content-length: {}\r\n", reply.body.len()));
        }
        head.push_str("\r\n");
        writer.write_all(head.as_bytes()).ok()?;
        if request.method == "HEAD" {
            continue;
        }
        if reply.endless || reply.drip {
            let chunk = if reply.drip { vec![b' '] } else { vec![b' '; 1 << 16] };
            let (pause, wake) = std::sync::mpsc::channel::<()>();
            while !stop.load(Ordering::Relaxed) {
                writer.write_all(&chunk).ok()?;
                if reply.drip {
                    let _ = wake.recv_timeout(Duration::from_millis(50)); // the drip's pace
                }
            }
            drop(pause);
            return None;
        }
        let end = reply.cut.unwrap_or(reply.body.len()).min(reply.body.len());
        writer.write_all(&reply.body[..end]).ok()?;
        if reply.cut.is_some() {
            return None;
        }
    }
}

/// An image in memory, by the paths under which a registry has it.
#[derive(Clone)]
struct Content {
    manifest: Vec<u8>,
    layer: Vec<u8>,
    blobs: HashMap<String, Vec<u8>>,
}

fn content(compress: fn(&[u8]) -> Vec<u8>, file: &str) -> Content {
    let archive = layer(&[Entry::File("a", file)]);
    let config = image_config(std::slice::from_ref(&archive), json!({"Cmd": ["/a"]}));
    let layer = compress(&archive);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": sha256(&config), "size": config.len()},
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": sha256(&layer), "size": layer.len()}],
    });
    let blobs = [(sha256(&config), config), (sha256(&layer), layer.clone())].into();
    Content { manifest: manifest.to_string().into_bytes(), layer, blobs }
}

impl Content {
    /// As an honest registry answers.
    fn answer(&self, asked: &Asked) -> Reply {
        if asked.path.contains("/manifests/") {
            return Reply::ok(self.manifest.clone())
                .header("content-type", "application/vnd.oci.image.manifest.v1+json")
                .header("docker-content-digest", sha256(&self.manifest));
        }
        let digest = asked.path.rsplit('/').next().unwrap_or_default();
        self.blobs.get(digest).map_or(Reply::status(404), |blob| Reply::ok(blob.clone()))
    }
}

/// A puller on the fixture's store that loses its patience early.
fn puller(fixture: &Fixture) -> Puller {
    let limits = Limits {
        connect: Duration::from_secs(10),
        answer: Duration::from_secs(10),
        progress: Duration::from_millis(700),
        progress_bytes: 1 << 10,
        retries: 2,
        pause: Duration::from_millis(1),
        ..Limits::default()
    };
    Puller::new(fixture.runtime.images().clone(), registries(place(fixture)), limits)
}

async fn pull_with(
    fixture: &Fixture,
    name: &str,
    auth: Option<&AuthConfig>,
) -> Result<ImageRecord, Arc<PullError>> {
    let reference = Reference::parse(name).unwrap();
    puller(fixture).pull(&reference, auth, PullOptions::default()).await
}

fn text(error: &PullError) -> String {
    telemetry::chain(error).to_string()
}

async fn a_token_is_fetched_with_the_credentials_of_the_image(fixture: &Fixture) {
    let image = content(gzip, "x");
    let realm = Arc::new(Mutex::new(String::new()));
    let fake = {
        let realm = realm.clone();
        Fake::start(move |asked| {
            if asked.path.starts_with("/token") {
                let basic = asked.headers.get("authorization").map(String::as_str);
                return match basic {
                    Some("Basic dTpw") => Reply::ok(r#"{"token":"the-token","expires_in":60}"#),
                    _ => Reply::status(401),
                };
            }
            match asked.headers.get("authorization").map(String::as_str) {
                Some("Bearer the-token") => image.answer(asked),
                _ => Reply::status(401).header(
                    "www-authenticate",
                    format!(
                        r#"Bearer realm="{}",service="reg",scope="repository:a/b:pull""#,
                        realm.lock().unwrap()
                    ),
                ),
            }
        })
    };
    *realm.lock().unwrap() = format!("http://{}/token", fake.address);
    insecure(fixture, &[&fake.address]);
    let name = format!("{}/a/b:1", fake.address);
    let auth = AuthConfig { auth: "dTpw".into(), ..AuthConfig::default() };
    pull_with(fixture, &name, Some(&auth)).await.unwrap();
    let asked = fake.asked();
    let tokens: Vec<&Asked> = asked.iter().filter(|asked| asked.path.starts_with("/token")).collect();
    assert_eq!(tokens.len(), 1, "one token serves the whole pull");
    assert!(tokens[0].path.contains("service=reg&scope=repository%3Aa%2Fb%3Apull"), "{}", tokens[0].path);
    let wrong = AuthConfig { username: "u".into(), password: "no".into(), ..AuthConfig::default() };
    fixture.runtime.remove_image(&name.as_str().into()).await.unwrap();
    assert!(text(&pull_with(fixture, &name, Some(&wrong)).await.unwrap_err()).contains("401"));
}

async fn a_mirror_is_asked_first_and_the_registry_after_it(fixture: &Fixture) {
    let image = content(zstd, "x");
    let (first, second) = (image.clone(), image.clone());
    let empty = Fake::start(|_| Reply::status(404));
    let mirror = Fake::start(move |asked| first.answer(asked));
    let origin = Fake::start(move |asked| second.answer(asked));
    let conf = |mirrors: &[&Fake]| {
        let mut text = format!("[[registry]]\nlocation = \"{}\"\ninsecure = true\n", origin.address);
        for mirror in mirrors {
            let entry =
                format!("[[registry.mirror]]\nlocation = \"{}/m\"\ninsecure = true\n", mirror.address);
            text.push_str(&entry);
        }
        std::fs::write(registries(place(fixture)).file, text).unwrap();
    };
    conf(&[&empty, &mirror]);
    let name = format!("{}/app:1", origin.address);
    let auth = AuthConfig { username: "u".into(), password: "p".into(), ..AuthConfig::default() };
    let pulled = pull_with(fixture, &name, Some(&auth)).await.unwrap();
    assert!(pulled.tags.contains(&name), "the image has the name that was asked for");
    assert!(mirror.asked().iter().any(|asked| asked.path.starts_with("/v2/m/app/blobs/")));
    assert!(!empty.asked().is_empty() && origin.asked().is_empty());
    fixture.runtime.remove_image(&name.as_str().into()).await.unwrap();
    conf(&[&empty]);
    pull_with(fixture, &name, None).await.unwrap();
    assert!(!origin.asked().is_empty());
    let blocked = format!("[[registry]]\nlocation = \"{}\"\nblocked = true\n", origin.address);
    std::fs::write(registries(place(fixture)).file, blocked).unwrap();
    assert!(text(&pull_with(fixture, &name, None).await.unwrap_err()).contains("blocked"));
}

async fn an_index_gives_the_image_of_this_machine(fixture: &Fixture) {
    let image = content(gzip, "x");
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [
            {"mediaType": "x", "digest": sha256(b"other"), "size": 1, "platform": {"os": "linux", "architecture": "s390x"}},
            {"mediaType": "x", "digest": sha256(&image.manifest), "size": 1, "platform": {"os": "linux", "architecture": architecture()}},
        ],
    })
    .to_string();
    let digest = sha256(index.as_bytes());
    let fake = Fake::start(move |asked| match asked.path.ends_with("/manifests/1") {
        true => Reply::ok(index.clone()).header("content-type", "application/vnd.oci.image.index.v1+json"),
        false => image.answer(asked),
    });
    insecure(fixture, &[&fake.address]);
    let name = format!("{}/app:1", fake.address);
    let pulled = pull_with(fixture, &name, None).await.unwrap();
    assert_eq!(pulled.digests.first().unwrap(), &format!("{}/app@{digest}", fake.address));
}

async fn a_broken_download_goes_on_where_it_ended(fixture: &Fixture) {
    for ranges in [true, false] {
        let noise: String = (0..60_000_u32)
            .map(|n| char::from(33 + (n.wrapping_mul(2_654_435_761) >> 25) as u8 % 90))
            .collect();
        let image = content(<[u8]>::to_vec, &format!("{ranges}{noise}"));
        let (whole, digest) = (image.layer.clone(), sha256(&image.layer));
        let tries = Arc::new(AtomicUsize::new(0));
        let fake = {
            let tries = tries.clone();
            Fake::start(move |asked| {
                if !asked.path.ends_with(&digest) {
                    return image.answer(asked);
                }
                let start: usize = match asked.headers.get("range") {
                    Some(range) if ranges => range[6..].trim_end_matches('-').parse().unwrap(),
                    _ => 0,
                };
                let status = if start > 0 { 206 } else { 200 };
                let cut = (tries.fetch_add(1, Ordering::Relaxed) < 2).then_some(20_000);
                Reply { status, body: whole[start..].to_vec(), cut, ..Reply::default() }
            })
        };
        insecure(fixture, &[&fake.address]);
        let pulled = pull_with(fixture, &format!("{}/app:1", fake.address), None).await;
        let pulled = pulled.unwrap_or_else(|error| panic!("{}", text(&error)));
        assert!(pulled.size > 60_000);
        let ranges_asked: Vec<Asked> =
            fake.asked().into_iter().filter(|asked| asked.headers.contains_key("range")).collect();
        assert_eq!(tries.load(Ordering::Relaxed), 3);
        assert_eq!(ranges_asked.len(), 2, "what was here already is not asked for again");
    }
}

async fn equal_pulls_are_one(fixture: &Fixture) {
    let image = content(gzip, "x");
    let fake = Fake::start(move |asked| image.answer(asked));
    insecure(fixture, &[&fake.address]);
    let name = format!("{}/app:1", fake.address);
    let pulls = (0..8).map(|_| pull(fixture, &name, None));
    for pulled in futures::future::join_all(pulls).await {
        pulled.unwrap();
    }
    let layers = fake.asked().into_iter().filter(|asked| asked.path.contains("/blobs/")).count();
    assert_eq!(layers, 2, "one configuration and one layer, once");
    pull(fixture, &name, None).await.unwrap();
    let gets = fake.asked().into_iter().filter(|asked| asked.method == "GET").count();
    assert_eq!(gets, 3, "what is here as the registry has it is not fetched again");
}

async fn what_a_registry_says_wrongly_is_refused(fixture: &Fixture) {
    let good = content(gzip, "x");
    let layer_digest = sha256(&good.layer);
    let with = |change: fn(&mut Value)| {
        let mut manifest: Value = serde_json::from_slice(&good.manifest).unwrap();
        change(&mut manifest);
        Content { manifest: manifest.to_string().into_bytes(), ..good.clone() }
    };
    let swapped = {
        let mut swapped = good.clone();
        swapped.blobs.insert(layer_digest.clone(), content(gzip, "y").layer);
        swapped
    };
    let mut no_archive = good.clone();
    let garbage = b"no archive at all".to_vec();
    let mut manifest: Value = serde_json::from_slice(&good.manifest).unwrap();
    manifest["layers"][0]["digest"] = json!(sha256(&garbage));
    manifest["layers"][0]["size"] = json!(garbage.len());
    no_archive.manifest = manifest.to_string().into_bytes();
    no_archive.blobs.insert(sha256(&garbage), garbage);
    let huge = Content { manifest: vec![b' '; (4 << 20) + 1], ..good.clone() };
    let cases: [(&str, Content); 8] = [
        ("digest", swapped),
        ("layer", no_archive),
        ("more than", huge),
        ("size", with(|manifest| manifest["layers"][0]["size"] = json!(-5))),
        ("bytes", with(|manifest| manifest["layers"][0]["size"] = json!(3))),
        ("layers", with(|manifest| manifest["layers"] = json!([]))),
        (
            "more than 500",
            with(|manifest| {
                let layer = manifest["layers"][0].clone();
                manifest["layers"] = json!(vec![layer; 501]);
            }),
        ),
        ("not a digest", with(|manifest| manifest["config"]["digest"] = json!("sha256:../../../etc/passwd"))),
    ];
    for (word, content) in cases {
        let fake = Fake::start(move |asked| content.answer(asked));
        insecure(fixture, &[&fake.address]);
        let error = pull_with(fixture, &format!("{}/app:1", fake.address), None).await.unwrap_err();
        assert!(text(&error).contains(word), "{word}: {}", text(&error));
    }
    // Another manifest than the digest that was asked for.
    let other = good.clone();
    let fake = Fake::start(move |asked| other.answer(asked));
    insecure(fixture, &[&fake.address]);
    let wanted = format!("{}/app@{}", fake.address, sha256(b"what was wanted"));
    assert!(text(&pull_with(fixture, &wanted, None).await.unwrap_err()).contains("digest"));
    // An index that leads to indexes, as deep as one looks.
    let fake = Fake::start(|asked| {
        let depth = asked.path.len();
        let inner = |n: usize| {
            json!({"schemaVersion": 2, "note": n, "manifests": [{"digest": sha256(n.to_string().as_bytes()), "size": 1}]}).to_string()
        };
        Reply::ok(inner(depth)).header("content-type", "application/vnd.oci.image.index.v1+json")
    });
    insecure(fixture, &[&fake.address]);
    pull_with(fixture, &format!("{}/app:1", fake.address), None).await.unwrap_err();
    assert!(fake.asked().len() < 10);
    let images = fixture.runtime.images().list().unwrap();
    assert!(images.iter().all(|image| image.pinned), "nothing of all this is an image");
    let built_in: std::collections::BTreeSet<&String> =
        images.iter().flat_map(|image| &image.layers).collect();
    let layers = std::fs::read_dir(fixture.runtime.images().layers()).unwrap().count();
    assert_eq!(layers, built_in.len(), "nor a layer");
    let left = std::fs::read_dir(place(fixture).join("root/tmp")).unwrap().count();
    assert_eq!(left, 0, "nor is anything left of it");
}

/// CVE-2020-15157: whoever a registry redirects to gets no credentials, whatever it asks for.
async fn credentials_stay_with_their_registry(fixture: &Fixture) {
    let image = content(gzip, "x");
    let thief = Fake::start(|_| Reply::status(401).header("www-authenticate", "Basic realm=\"x\""));
    let to = format!("http://{}/stolen", thief.address);
    let registry = Fake::start(move |asked| {
        if asked.headers.get("authorization").map(String::as_str) != Some("Basic dTpw") {
            return Reply::status(401).header("www-authenticate", "Basic realm=\"x\"");
        }
        match asked.path.contains("/blobs/") {
            true => Reply::status(307).header("location", &*to),
            false => image.answer(asked),
        }
    });
    insecure(fixture, &[&registry.address]);
    let auth = AuthConfig { username: "u".into(), password: "p".into(), ..AuthConfig::default() };
    let error = pull_with(fixture, &format!("{}/app:1", registry.address), Some(&auth)).await.unwrap_err();
    assert!(text(&error).contains("401"), "{}", text(&error));
    let asked = thief.asked();
    assert!(!asked.is_empty() && asked.iter().all(|asked| !asked.headers.contains_key("authorization")));

    // Redirects in a ring end.
    let ring = Fake::start(|asked| Reply::status(302).header("location", format!("{}x", asked.path)));
    insecure(fixture, &[&ring.address]);
    let error = pull_with(fixture, &format!("{}/app:1", ring.address), None).await.unwrap_err();
    assert!(text(&error).contains("again and again") && ring.asked().len() < 10);
}

async fn a_slow_or_endless_registry_is_left(fixture: &Fixture) {
    let image = content(gzip, "x");
    let digest = sha256(&image.layer);
    for (blob, drip) in [(true, true), (true, false), (false, true), (false, false)] {
        let (image, digest) = (image.clone(), digest.clone());
        let fake = Fake::start(move |asked| {
            let bad = if blob { asked.path.ends_with(&digest) } else { asked.path.contains("/manifests/") };
            match bad {
                true => Reply { status: 200, drip, endless: !drip, ..Reply::default() },
                false => image.answer(asked),
            }
        });
        insecure(fixture, &[&fake.address]);
        let name = format!("{}/app:1", fake.address);
        let pulling = pull_with(fixture, &name, None);
        let error = tokio::time::timeout(Duration::from_secs(60), pulling).await.unwrap().unwrap_err();
        let wanted = match (blob, drip) {
            (_, true) => "fewer than",
            (true, false) => "bytes but has",
            (false, false) => "more than",
        };
        assert!(text(&error).contains(wanted) || text(&error).contains("should have"), "{}", text(&error));
    }
    // Nobody there at all has a reason of its own.
    let gone = format!("127.0.0.1:{}/app:1", free_port());
    let error =
        fixture.runtime.pull_image(&gone.as_str().into(), None, &Default::default()).await.unwrap_err();
    assert!(matches!(error, cri::Error::RegistryUnavailable { .. }), "{error:?}");
}

async fn a_pull_in_progress_survives_a_collection(fixture: &Fixture) {
    let image = content(gzip, "x");
    let digest = sha256(&image.layer);
    let (reached, mut wait) = tokio::sync::mpsc::unbounded_channel();
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let fake = Fake::start(move |asked| {
        if asked.path.ends_with(&digest) && asked.method == "GET" {
            reached.send(()).unwrap();
            let _ = gate.lock().unwrap().recv_timeout(Duration::from_secs(20));
        }
        image.answer(asked)
    });
    insecure(fixture, &[&fake.address]);
    let name = format!("{}/app:1", fake.address);
    let pulling = pull(fixture, &name, None);
    let collecting = async {
        wait.recv().await.unwrap();
        let store = fixture.runtime.images().clone();
        tokio::task::spawn_blocking(move || store.collect(store.lock(true).unwrap()).unwrap()).await.unwrap();
        go.send(()).unwrap();
    };
    let (pulled, ()) = futures::future::join(pulling, collecting).await;
    pulled.unwrap();
    let status = fixture.runtime.image_status(&name.as_str().into()).await.unwrap();
    assert!(status.is_some());
}

async fn an_exported_image_is_read_by_others(fixture: &Fixture) {
    let directory = context(fixture, "FROM scratch\nCOPY files /\nENV A=1\n");
    image(fixture, &["build", directory.to_str().unwrap(), "-t", "example.com/app:1"]).unwrap();
    let path = place(fixture).join("out.tar");
    image(fixture, &["export", "example.com/app:1", path.to_str().unwrap()]).unwrap();
    let before = fixture.runtime.image_status(&"example.com/app:1".into()).await.unwrap().unwrap();
    fixture.runtime.remove_image(&"example.com/app:1".into()).await.unwrap();
    image(fixture, &["import", path.to_str().unwrap()]).unwrap();
    let after = fixture.runtime.image_status(&"example.com/app:1".into()).await.unwrap().unwrap();
    assert_eq!((after.id, after.repo_digests), (before.id, before.repo_digests));
    let Some(skopeo) = testing::program("skopeo") else { return };
    let skopeo = Command::new(skopeo)
        .args(["inspect", "--config", &format!("docker-archive:{}", path.display())])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&skopeo.stdout);
    assert!(said.contains("A=1"), "{said} {}", String::from_utf8_lossy(&skopeo.stderr));
}
