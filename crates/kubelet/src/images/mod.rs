//! Makes images present: by pull policy, with the credentials that fit, no faster than allowed, in upstream's words.
//!
//! `ensure → look → may the pod use what is here? → wait for a turn → pull with each credential that fits → record`. Who may use a
//! pulled image is in [`records`]; which images go when the disk fills is in [`collect`].

pub mod collect;
mod credentials;
mod pace;
pub mod records;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cri::{ImageService, ImageSpec, PodSandboxConfig};

pub use credentials::{Credentials, Offered, repository};
use pace::Pace;
use records::{Access, Records};

use crate::security::ImageUser;
use crate::state::Waiting;

/// Which images that are here a pod may use without proving that it could pull them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verification {
    NeverVerify,
    NeverVerifyPreloadedImages,
    /// Those that fit a pattern: a name, or a beginning with `/*`.
    NeverVerifyAllowlistedImages(Vec<String>),
    AlwaysVerify,
}

/// How images are pulled and removed; upstream's defaults.
#[derive(Debug, Clone)]
pub struct ImageSettings {
    /// One pull at a time.
    pub serialize: bool,
    /// Otherwise so many at most.
    pub max_parallel: Option<u32>,
    /// Pulls per second, and how many may come at once. Zero is no limit.
    pub pull_qps: u32,
    pub pull_burst: u32,
    /// Above this share of the disk unused images are removed, until the lower one.
    pub high_threshold_percent: u64,
    pub low_threshold_percent: u64,
    /// No image is removed that is younger.
    pub minimum_age: Duration,
    /// Every image goes that was not used for so long; zero is for ever.
    pub maximum_age: Duration,
    pub verification: Verification,
}

impl Default for ImageSettings {
    fn default() -> Self {
        Self {
            serialize: true,
            max_parallel: None,
            pull_qps: 5,
            pull_burst: 10,
            high_threshold_percent: 85,
            low_threshold_percent: 80,
            minimum_age: Duration::from_secs(120),
            maximum_age: Duration::ZERO,
            verification: Verification::NeverVerifyPreloadedImages,
        }
    }
}

/// What happened, for events.
#[derive(Debug, PartialEq)]
pub enum Note {
    Pulling(String),
    Pulled(String),
    Failed(&'static str, String),
}

/// An image that is present.
#[derive(Debug, Clone)]
pub struct Present {
    /// What the container is created from.
    pub reference: String,
    pub user: ImageUser,
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    pub image: &'a str,
    pub policy: &'a str,
}

/// The images of this node.
pub struct Images {
    service: Arc<dyn ImageService>,
    pace: Pace,
    records: Records,
    verification: Verification,
    root: PathBuf,
}

impl Images {
    pub fn new(service: Arc<dyn ImageService>, settings: &ImageSettings, root: PathBuf) -> Self {
        Self {
            service,
            pace: Pace::new(settings),
            records: Records::open(root.join("image_manager")),
            verification: settings.verification.clone(),
            root,
        }
    }

    pub fn records(&self) -> &Records {
        &self.records
    }

    /// The node's own credentials, behind those of a pod.
    pub fn node_credentials(&self) -> Credentials {
        credentials::of_node(&self.root)
    }

    /// Makes an image present. `offered` are the pod's credentials and the node's; `note` hears of each step.
    pub async fn ensure(
        &self,
        wanted: Wanted<'_>,
        offered: &Credentials,
        sandbox: &PodSandboxConfig,
        note: &(dyn Fn(Note) + Send + Sync),
    ) -> Result<Present, Waiting> {
        let Wanted { image, policy } = wanted;
        if !is_reference(image) {
            let message = format!(
                "Failed to apply default image tag {image:?}: couldn't parse image name {image:?}: invalid reference format"
            );
            note(Note::Failed("InspectFailed", message.clone()));
            return Err(Waiting { reason: "InvalidImageName", message });
        }
        let spec = ImageSpec { user_specified_image: image.to_owned(), ..ImageSpec::from(image) };
        let never = || {
            let message = format!("Container image {image:?} is not present with pull policy of Never");
            note(Note::Failed("ErrImageNeverPull", message.clone()));
            Waiting { reason: "ErrImageNeverPull", message }
        };
        let fitting = offered.for_image(image);
        if policy != "Always" {
            let present = self.service.image_status(&spec).await.map_err(|error| {
                let message = format!("Failed to inspect image {image:?}: {}", telemetry::chain(&error));
                note(Note::Failed("InspectFailed", message.clone()));
                Waiting { reason: "ImageInspectError", message }
            })?;
            match present {
                Some(found) if self.may_use(image, &found.id, &fitting) => {
                    note(Note::Pulled(format!(
                        "Container image {image:?} already present on machine and can be accessed by the pod"
                    )));
                    return Ok(here(found));
                }
                // Whoever may not use it shall not learn that it is there.
                _ if policy == "Never" => return Err(never()),
                _ => {}
            }
        }
        self.pull(&spec, &fitting, sandbox, note).await
    }

    fn may_use(&self, image: &str, id: &str, fitting: &[Offered]) -> bool {
        let name = repository(image);
        match &self.verification {
            Verification::NeverVerify => return true,
            Verification::NeverVerifyAllowlistedImages(patterns) => {
                if patterns.iter().any(|pattern| is_listed(pattern, &name)) {
                    return true;
                }
            }
            Verification::NeverVerifyPreloadedImages => {
                if self.records.is_preloaded(image, id) {
                    return true;
                }
            }
            Verification::AlwaysVerify => {}
        }
        self.records.allows(id, &name, fitting)
    }

    async fn pull(
        &self,
        spec: &ImageSpec,
        fitting: &[Offered],
        sandbox: &PodSandboxConfig,
        note: &(dyn Fn(Note) + Send + Sync),
    ) -> Result<Present, Waiting> {
        let image = spec.image.as_str();
        note(Note::Pulling(format!("Pulling image {image:?}")));
        let asked = Instant::now();
        let _intent = self.records.intend(image);
        let outcome = match self.pace.turn().await {
            Ok(_turn) => {
                let started = Instant::now();
                self.try_each(spec, fitting, sandbox)
                    .await
                    .map(|(found, with)| (found, with, started.elapsed()))
            }
            Err(busy) => Err(busy),
        };
        let (found, access, pulling) = outcome.map_err(|failure| {
            note(Note::Failed("Failed", format!("Failed to pull image {image:?}: {}", failure.text)));
            match failure.unavailable {
                true => Waiting {
                    reason: "RegistryUnavailable",
                    message: format!(
                        "image pull failed for {image} because the registry is unavailable: {}",
                        failure.text
                    ),
                },
                false => Waiting { reason: "ErrImagePull", message: failure.text },
            }
        })?;
        self.records.pulled(&found.id, &repository(image), access);
        note(Note::Pulled(format!(
            "Successfully pulled image {image:?} in {} ({} including waiting). Image size: {} bytes.",
            go_duration(pulling),
            go_duration(asked.elapsed()),
            found.size
        )));
        Ok(here(found))
    }

    /// One try without credentials, or one with each that fits.
    async fn try_each(
        &self,
        spec: &ImageSpec,
        fitting: &[Offered],
        sandbox: &PodSandboxConfig,
    ) -> Result<(cri::Image, Access), PullFailure> {
        let tries: Vec<Option<&Offered>> = match fitting {
            [] => vec![None],
            some => some.iter().map(Some).collect(),
        };
        let mut failures: Vec<PullFailure> = Vec::new();
        for one in tries {
            match self.service.pull_image(spec, one.map(|one| &one.auth), sandbox).await {
                Ok(id) => {
                    let found = self.service.image_status(spec).await.ok().flatten();
                    let found = match found {
                        Some(found) => Some(found),
                        None => self.service.image_status(&ImageSpec::from(id.as_str())).await.ok().flatten(),
                    };
                    let access = one.map_or(Access::Node, Offered::access);
                    return found.map(|found| (found, access)).ok_or_else(|| PullFailure {
                        text: format!("image {:?} is not there after it was pulled", spec.image),
                        unavailable: false,
                    });
                }
                Err(error) => {
                    let failure = PullFailure::from(&error);
                    if failures.iter().all(|known| known.text != failure.text) {
                        failures.push(failure);
                    }
                }
            }
        }
        let unavailable = failures.iter().all(|failure| failure.unavailable);
        let texts: Vec<String> = failures.into_iter().map(|failure| failure.text).collect();
        // Upstream's form of several errors.
        let text = if texts.len() == 1 { texts.concat() } else { format!("[{}]", texts.join(", ")) };
        Err(PullFailure { text, unavailable })
    }
}

fn here(found: cri::Image) -> Present {
    Present { reference: found.id.clone(), user: ImageUser { uid: found.uid, name: found.username } }
}

/// Why a pull brought nothing.
#[derive(Debug)]
struct PullFailure {
    text: String,
    unavailable: bool,
}

impl From<&cri::Error> for PullFailure {
    fn from(error: &cri::Error) -> Self {
        match error {
            cri::Error::RegistryUnavailable { reason, .. } => {
                Self { text: reason.clone(), unavailable: true }
            }
            other => Self { text: telemetry::chain(other).to_string(), unavailable: false },
        }
    }
}

fn is_listed(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix("/*") {
        Some(start) => name.strip_prefix(start).is_some_and(|rest| rest.starts_with('/')),
        None => pattern == name,
    }
}

/// Whether the text can be an image reference at all.
fn is_reference(image: &str) -> bool {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    !name.is_empty()
        && !name.starts_with(['/', '-', '.', ':'])
        && !name.ends_with(['/', ':'])
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/:[]".contains(&byte))
        // Upper case is only for hosts and tags.
        && name.split('/').skip(usize::from(name.contains('/'))).all(|part| {
            part.split(':').next().is_some_and(|path| !path.bytes().any(|byte| byte.is_ascii_uppercase()))
        })
}

/// A duration in whole milliseconds as Go prints it: `1m2.5s`, `340ms`.
fn go_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis < 1000 {
        return if millis == 0 { "0s".into() } else { format!("{millis}ms") };
    }
    let (minutes, rest) = (millis / 60_000, millis % 60_000);
    let fraction = format!(".{:03}", rest % 1000);
    let seconds = format!("{}{}s", rest / 1000, fraction.trim_end_matches('0').trim_end_matches('.'));
    match (minutes / 60, minutes % 60) {
        (0, 0) => seconds,
        (0, minutes) => format!("{minutes}m{seconds}"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_told_from_rubbish() {
        for good in ["a", "a:1", "Host.example:5000/a/b:TAG", "a@sha256:00", "docker.io/library/nginx:latest"]
        {
            assert!(is_reference(good), "{good}");
        }
        for bad in ["", "A/B:x/", "a b", "INVALID/Upper", ":x", "a/UPPER"] {
            assert!(!is_reference(bad), "{bad}");
        }
    }

    #[test]
    fn durations_read_as_upstreams() {
        let cases = [
            (0, "0s"),
            (7, "7ms"),
            (1000, "1s"),
            (1230, "1.23s"),
            (62_500, "1m2.5s"),
            (3_600_001, "1h0m0.001s"),
        ];
        for (millis, text) in cases {
            assert_eq!(go_duration(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn lists_name_images_or_their_beginnings() {
        assert!(is_listed("a.io/x/*", "a.io/x/y") && is_listed("a.io/x", "a.io/x"));
        assert!(!is_listed("a.io/x/*", "a.io/xy") && !is_listed("a.io/x", "a.io/x/y"));
    }
}
