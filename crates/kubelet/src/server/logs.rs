//! `/containerLogs`: the log of a container, whole or in part, once or as it grows.

use bytes::Bytes;
use cri::ContainerState;
use http::{StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use super::log_reader::{LogReader, Options};
use super::query::{self, Query};
use super::{Answer, text};
use crate::inotify::Watch;
use crate::pod_worker::Report;
use crate::pods::Pods;

pub fn serve(pods: &Pods, namespace: &str, pod: &str, container: &str, query: &str) -> Answer {
    let query = query::parse(query);
    let options = match options(&query, Timestamp::now()) {
        Ok(options) => options,
        Err(problem) => return text(StatusCode::BAD_REQUEST, problem),
    };
    let Some(reports) = pods.find(namespace, pod, None) else {
        return text(StatusCode::NOT_FOUND, format!("pod {pod:?} does not exist"));
    };
    let (id, path) = {
        let report = reports.borrow();
        let known = report.pod.as_ref().is_some_and(|pod| pod.container(container).is_some());
        if !known {
            return text(StatusCode::NOT_FOUND, format!("container {container:?} not found in pod {pod:?}"));
        }
        let skip = usize::from(query.flag("previous"));
        let found = report
            .containers
            .iter()
            .filter(|(name, _, state)| name == container && *state != ContainerState::Created)
            .nth(skip);
        match found.and_then(|(_, id, _)| Some((id.clone(), report.log_paths.get(id)?.clone()))) {
            Some(found) => found,
            None if skip == 1 => {
                let problem = format!("previous terminated container {container:?} in pod {pod:?} not found");
                return text(StatusCode::BAD_REQUEST, problem);
            }
            None => {
                let reason = waiting_reason(&report, container);
                let problem = format!("container {container:?} in pod {pod:?} is waiting to start: {reason}");
                return text(StatusCode::BAD_REQUEST, problem);
            }
        }
    };
    let reader = match LogReader::open(&path, options) {
        Ok(reader) => reader,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return text(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("the log of container {container:?} is gone"),
            );
        }
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let watch = if query.flag("follow") { reader.watch().ok() } else { None };
    let follow = watch.map(|watch| Follow { watch, reports, id, last_look: false });
    let pieces = futures::stream::unfold(Some((reader, follow)), |state| async move {
        let (mut reader, mut follow) = state?;
        match next(&mut reader, follow.as_mut()).await {
            Ok(Some(piece)) => Some((Ok(Frame::data(piece)), Some((reader, follow)))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    });
    let mut answer = Answer::new(StreamBody::new(pieces).boxed_unsync());
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain"));
    answer
}

struct Follow {
    watch: Watch,
    reports: watch::Receiver<Report>,
    id: String,
    /// The container ended; what it wrote last is being read.
    last_look: bool,
}

/// The next piece; waits for it when following.
async fn next(reader: &mut LogReader, follow: Option<&mut Follow>) -> std::io::Result<Option<Bytes>> {
    let Some(follow) = follow else {
        return Ok(reader.read()?.filter(|piece| !piece.is_empty()));
    };
    loop {
        match reader.read()? {
            None => return Ok(None),
            Some(piece) if !piece.is_empty() => return Ok(Some(piece)),
            Some(_) if reader.follow_rotation() => {
                follow.watch = reader.watch()?;
                continue;
            }
            Some(_) if follow.last_look => return Ok(None),
            Some(_) => {}
        }
        let running = follow
            .reports
            .borrow_and_update()
            .containers
            .iter()
            .any(|(_, id, state)| *id == follow.id && *state == ContainerState::Running);
        if !running {
            // It may have written between our last read and its end.
            follow.last_look = true;
            continue;
        }
        // Both only mean: look again.
        tokio::select! {
            () = follow.watch.changed() => {}
            changed = follow.reports.changed() => {
                if changed.is_err() {
                    follow.last_look = true;
                }
            }
        }
    }
}

fn options(query: &Query, now: Timestamp) -> Result<Options, String> {
    let since = match (query.number("sinceSeconds")?, query.get("sinceTime").filter(|text| !text.is_empty()))
    {
        (Some(seconds), _) => {
            now.checked_sub(SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX))).ok()
        }
        (None, Some(text)) => Some(text.parse().map_err(|_| format!("sinceTime: {text:?} is not a time"))?),
        (None, None) => None,
    };
    Ok(Options {
        tail_lines: query.number("tailLines")?,
        since,
        timestamps: query.flag("timestamps"),
        limit_bytes: query.number("limitBytes")?,
        stream: match query.get("stream") {
            None | Some("" | "All") => None,
            Some("Stdout") => Some("stdout"),
            Some("Stderr") => Some("stderr"),
            Some(other) => return Err(format!("stream: {other:?} is not Stdout, Stderr or All")),
        },
    })
}

fn waiting_reason(report: &Report, container: &str) -> String {
    let statuses = report.status.as_ref().map(|status| &status.status);
    let found = statuses.and_then(|status| {
        ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"]
            .into_iter()
            .flat_map(|list| status[list].as_array().into_iter().flatten())
            .find(|one| one["name"] == container)?["state"]["waiting"]["reason"]
            .as_str()
            .map(str::to_owned)
    });
    match found.as_deref() {
        Some("ErrImagePull") => "image can't be pulled".into(),
        Some("ImagePullBackOff") => "trying and failing to pull image".into(),
        Some(reason) => reason.to_owned(),
        None => "ContainerCreating".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_from_the_query() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let read = |text: &str| options(&query::parse(text), now);
        assert_eq!(
            read("tailLines=5&timestamps=true").unwrap(),
            Options { tail_lines: Some(5), timestamps: true, ..Options::default() }
        );
        assert_eq!(read("sinceSeconds=60").unwrap().since, "2026-01-01T00:00:00Z".parse().ok());
        assert_eq!(
            read("sinceTime=2025-01-01T00%3A00%3A00Z").unwrap().since,
            "2025-01-01T00:00:00Z".parse().ok()
        );
        assert!(read("tailLines=-1").is_err() && read("sinceTime=now").is_err() && read("stream=x").is_err());
    }
}
