//! The protocol, as clients speak it.

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use registry::auth::{Auth, Htpasswd};
use registry::route::Digest;
use registry::server::{Body, Limits, Registry};
use registry::store::Store;
use serde_json::{Value, json};

struct Fixture {
    directory: tempfile::TempDir,
    registry: Registry,
}

fn fixture_with(auth: Auth, limits: Limits) -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let registry = Registry::new(Store::open(directory.path()).unwrap(), auth, limits, false, "http");
    Fixture { directory, registry }
}

fn fixture() -> Fixture {
    fixture_with(Auth::Open, Limits::default())
}

struct Answer {
    status: StatusCode,
    headers: http::HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    async fn of(response: Response<Body>) -> Self {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes().to_vec();
        Self { status: parts.status, headers: parts.headers, body }
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn code(&self) -> String {
        self.json()["errors"][0]["code"].as_str().unwrap_or_default().to_owned()
    }
}

impl Fixture {
    async fn ask(&self, method: Method, uri: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut request = Request::builder().method(method).uri(uri).header("host", "r.example:5000");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body))).unwrap();
        Answer::of(self.registry.handle(request).await).await
    }

    async fn get(&self, uri: &str) -> Answer {
        self.ask(Method::GET, uri, &[], b"").await
    }

    /// Pushes a blob in one request.
    async fn blob(&self, name: &str, bytes: &[u8]) -> Digest {
        let digest = Digest::of(bytes);
        let uri = format!("/v2/{name}/blobs/uploads/?digest={digest}");
        assert_eq!(self.ask(Method::POST, &uri, &[], bytes).await.status, StatusCode::CREATED);
        digest
    }

    /// Pushes an image with one layer.
    async fn image(&self, name: &str, tag: &str, layer: &[u8]) -> Digest {
        let (config, layer) = (self.blob(name, b"{}").await, self.blob(name, layer).await);
        let manifest = manifest(&config, &layer).to_string();
        let kind = [("content-type", OCI)];
        let answer =
            self.ask(Method::PUT, &format!("/v2/{name}/manifests/{tag}"), &kind, manifest.as_bytes()).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", String::from_utf8_lossy(&answer.body));
        Digest::parse(answer.header("docker-content-digest")).unwrap()
    }
}

const OCI: &str = "application/vnd.oci.image.manifest.v1+json";

fn manifest(config: &Digest, layer: &Digest) -> Value {
    json!({
        "schemaVersion": 2, "mediaType": OCI,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config.as_str(), "size": 2},
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": layer.as_str(), "size": 5}],
    })
}

#[tokio::test]
async fn an_image_is_pushed_and_pulled_by_tag_and_digest() {
    let fixture = fixture();
    assert_eq!(fixture.get("/v2/").await.status, StatusCode::OK);
    let digest = fixture.image("team/app", "v1", b"layer").await;
    for reference in ["v1", digest.as_str()] {
        let answer = fixture.get(&format!("/v2/team/app/manifests/{reference}")).await;
        assert_eq!((answer.status, answer.header("content-type")), (StatusCode::OK, OCI));
        assert_eq!(Digest::of(&answer.body), digest);
    }
    let layer = Digest::of(b"layer");
    let head = fixture.ask(Method::HEAD, &format!("/v2/team/app/blobs/{layer}"), &[], b"").await;
    assert_eq!((head.status, head.header("content-length"), head.body.len()), (StatusCode::OK, "5", 0));
    let part = [("range", "bytes=1-3")];
    let part = fixture.ask(Method::GET, &format!("/v2/team/app/blobs/{layer}"), &part, b"").await;
    assert_eq!((part.status, &part.body[..]), (StatusCode::PARTIAL_CONTENT, &b"aye"[..]));
    assert_eq!(part.header("content-range"), "bytes 1-3/5");
    let known = [("if-none-match", &format!("\"{digest}\"")[..])];
    let answer = fixture.ask(Method::GET, "/v2/team/app/manifests/v1", &known, b"").await;
    assert_eq!(answer.status, StatusCode::NOT_MODIFIED);
    // What one repository has another one has not.
    assert_eq!(fixture.get(&format!("/v2/team/other/blobs/{layer}")).await.code(), "BLOB_UNKNOWN");
}

#[tokio::test]
async fn a_blob_comes_in_pieces_that_must_fit() {
    let fixture = fixture();
    let begun = fixture.ask(Method::POST, "/v2/app/blobs/uploads/", &[], b"").await;
    assert_eq!(begun.status, StatusCode::ACCEPTED);
    let place = begun.header("location").to_owned();
    let first = fixture.ask(Method::PATCH, &place, &[("content-range", "0-3")], b"abcd").await;
    assert_eq!((first.status, first.header("range")), (StatusCode::ACCEPTED, "0-3"));
    let gap = fixture.ask(Method::PATCH, &place, &[("content-range", "6-7")], b"gh").await;
    assert_eq!((gap.status, gap.code()), (StatusCode::RANGE_NOT_SATISFIABLE, "RANGE_INVALID".to_owned()));
    let state = fixture.get(&place).await;
    assert_eq!((state.status, state.header("range")), (StatusCode::NO_CONTENT, "0-3"));
    let elsewhere = place.replace("/app/", "/other/");
    assert_eq!(fixture.ask(Method::PATCH, &elsewhere, &[], b"x").await.code(), "BLOB_UPLOAD_UNKNOWN");
    let digest = Digest::of(b"abcdef");
    let last = fixture.ask(Method::PUT, &format!("{place}?digest={digest}"), &[], b"ef").await;
    assert_eq!(last.status, StatusCode::CREATED);
    assert_eq!(fixture.get(&format!("/v2/app/blobs/{digest}")).await.body, b"abcdef");
    assert_eq!(fixture.get(&place).await.code(), "BLOB_UPLOAD_UNKNOWN");
    let uploads = fixture.directory.path().join("uploads");
    assert_eq!(std::fs::read_dir(uploads).unwrap().count(), 0);
}

#[tokio::test]
async fn what_is_not_what_it_says_is_refused() {
    let limits = Limits { manifest: 1000, blob: 10, uploads: 2, ..Limits::default() };
    let fixture = fixture_with(Auth::Open, limits);
    let wrong = format!("/v2/app/blobs/uploads/?digest={}", Digest::of(b"other"));
    assert_eq!(fixture.ask(Method::POST, &wrong, &[], b"this").await.code(), "DIGEST_INVALID");
    let large = format!("/v2/app/blobs/uploads/?digest={}", Digest::of(&[0; 11]));
    assert_eq!(fixture.ask(Method::POST, &large, &[], &[0; 11]).await.code(), "SIZE_INVALID");
    // Neither left anything.
    assert_eq!(std::fs::read_dir(fixture.directory.path().join("uploads")).unwrap().count(), 0);
    for _ in 0..2 {
        let begun = fixture.ask(Method::POST, "/v2/app/blobs/uploads/", &[], b"").await;
        assert_eq!(begun.status, StatusCode::ACCEPTED);
    }
    let more = fixture.ask(Method::POST, "/v2/app/blobs/uploads/", &[], b"").await;
    assert_eq!(more.code(), "TOOMANYREQUESTS");

    let put = async |reference: &str, kind: &str, bytes: &[u8]| {
        let uri = format!("/v2/app/manifests/{reference}");
        fixture.ask(Method::PUT, &uri, &[("content-type", kind)], bytes).await.code()
    };
    let absent = manifest(&Digest::of(b"c"), &Digest::of(b"l")).to_string();
    assert_eq!(put("v1", OCI, absent.as_bytes()).await, "MANIFEST_BLOB_UNKNOWN");
    assert_eq!(put("v1", "text/plain", absent.as_bytes()).await, "MANIFEST_INVALID");
    assert_eq!(put("v1", OCI, b"{").await, "MANIFEST_INVALID");
    assert_eq!(put("v1", OCI, &[b' '; 1001]).await, "SIZE_INVALID");
    let plain = json!({"schemaVersion": 2}).to_string();
    assert_eq!(put(Digest::of(b"x").as_str(), OCI, plain.as_bytes()).await, "DIGEST_INVALID");
    for uri in ["/v2/../x/manifests/v1", "/v2/App/tags/list", "/v2/a//b/tags/list"] {
        assert_eq!(fixture.get(uri).await.code(), "NAME_INVALID", "{uri}");
    }
    assert_eq!(fixture.get("/v2/app/tags/list").await.code(), "NAME_UNKNOWN");
    assert_eq!(fixture.get("/nothing").await.status, StatusCode::NOT_FOUND);
    assert_eq!(fixture.ask(Method::POST, "/v2/_catalog", &[], b"").await.code(), "UNSUPPORTED");
}

#[tokio::test]
async fn lists_come_in_pages() {
    let fixture = fixture();
    for name in ["a", "b/c", "d"] {
        fixture.image(name, "v1", b"layer").await;
    }
    for tag in ["v3", "v2"] {
        fixture.image("a", tag, b"layer").await;
    }
    assert_eq!(fixture.get("/v2/_catalog").await.json(), json!({"repositories": ["a", "b/c", "d"]}));
    let page = fixture.get("/v2/_catalog?n=2").await;
    assert_eq!(page.json()["repositories"], json!(["a", "b/c"]));
    assert_eq!(page.header("link"), "</v2/_catalog?last=b%2Fc&n=2>; rel=\"next\"");
    let page = fixture.get("/v2/_catalog?last=b%2Fc&n=2").await;
    assert_eq!((page.json()["repositories"].clone(), page.header("link")), (json!(["d"]), ""));
    let tags = fixture.get("/v2/a/tags/list?n=2").await;
    assert_eq!(tags.json(), json!({"name": "a", "tags": ["v1", "v2"]}));
    assert_eq!(fixture.get("/v2/a/tags/list?n=x").await.code(), "PAGINATION_NUMBER_INVALID");
}

#[tokio::test]
async fn blobs_are_mounted_and_what_nobody_needs_is_collected() {
    let fixture = fixture();
    let kept = fixture.image("app", "v1", b"first").await;
    let lost = fixture.image("app", "v1", b"second").await;
    let layer = Digest::of(b"first");
    let mount = format!("/v2/copy/blobs/uploads/?mount={layer}&from=app");
    assert_eq!(fixture.ask(Method::POST, &mount, &[], b"").await.status, StatusCode::CREATED);
    assert_eq!(fixture.get(&format!("/v2/copy/blobs/{layer}")).await.body, b"first");
    let unknown = format!("/v2/copy/blobs/uploads/?mount={layer}&from=none");
    assert_eq!(fixture.ask(Method::POST, &unknown, &[], b"").await.status, StatusCode::ACCEPTED);
    let describing = json!({
        "schemaVersion": 2, "mediaType": OCI, "artifactType": "text/note",
        "subject": {"mediaType": OCI, "digest": kept.as_str(), "size": 1}, "layers": [],
    })
    .to_string();
    let note = Digest::of(describing.as_bytes());
    let uri = format!("/v2/app/manifests/{note}");
    let answer = fixture.ask(Method::PUT, &uri, &[("content-type", OCI)], describing.as_bytes()).await;
    assert_eq!(answer.header("oci-subject"), kept.as_str());
    let referrers = fixture.get(&format!("/v2/app/referrers/{kept}")).await.json();
    assert_eq!(referrers["manifests"][0]["digest"], note.as_str());

    let deleted = fixture.ask(Method::DELETE, &format!("/v2/app/manifests/{lost}"), &[], b"").await;
    assert_eq!(deleted.status, StatusCode::ACCEPTED);
    assert_eq!(fixture.get("/v2/app/manifests/v1").await.code(), "MANIFEST_UNKNOWN");
    assert!(Store::open(fixture.directory.path()).is_err(), "one registry at a time");
    let Fixture { directory, registry } = fixture;
    drop(registry);
    let store = Store::open(directory.path()).unwrap();
    let would = store.collect(false, true).unwrap();
    assert_eq!(would.blobs.len(), 2, "the deleted manifest and its layer: {would:?}");
    assert_eq!(store.collect(false, false).unwrap(), would);
    assert!(store.has_blob("app", &layer) && !store.has_blob("app", &Digest::of(b"second")));
    let rest = store.collect(true, false).unwrap();
    assert_eq!(rest.manifests.len(), 2, "no tag leads to them: {rest:?}");
    assert!(!store.has_blob("app", &layer));
}

#[tokio::test]
async fn nobody_gets_in_without_a_password() {
    // htpasswd -nbB -C 4 ann secret
    let hash = bcrypt::hash("secret", 4).unwrap();
    let users = Htpasswd::parse(&format!("ann:{hash}")).unwrap();
    let fixture = fixture_with(Auth::Basic(users), Limits::default());
    let refused = fixture.get("/v2/").await;
    assert_eq!((refused.status, refused.code()), (StatusCode::UNAUTHORIZED, "UNAUTHORIZED".to_owned()));
    assert!(refused.header("www-authenticate").starts_with("Basic realm="));
    let right = [("authorization", "Basic YW5uOnNlY3JldA==")];
    assert_eq!(fixture.ask(Method::GET, "/v2/", &right, b"").await.status, StatusCode::OK);
    let wrong = [("authorization", "Basic YW5uOnNlY3JlcA==")];
    assert_eq!(fixture.ask(Method::GET, "/v2/", &wrong, b"").await.status, StatusCode::UNAUTHORIZED);
}
