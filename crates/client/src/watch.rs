//! A watch as a stream of events, cut out of the server's lines of JSON.

use bytes::{Bytes, BytesMut};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::{Body, Error, read};

/// A line of a watch larger than this means that the server is not one of ours, nor upstream's.
const MAX_EVENT_BYTES: usize = 64 << 20;

/// An object as the server sent it: each reader decodes only what it uses, and nobody decodes it twice.
#[derive(Clone, Debug)]
pub struct Encoded(Bytes);

impl Encoded {
    pub fn decode<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        read(&self.0)
    }
}

/// One event.
#[derive(Debug)]
pub enum WatchEvent {
    Added(Encoded),
    Modified(Encoded),
    Deleted(Encoded),
    /// Nothing before this revision is missing.
    Bookmark(Encoded),
}

/// Events as they come. Dropping it ends the watch.
pub struct WatchStream {
    body: Body,
    /// What came last and was not looked at yet: mostly whole lines, which are cut out of it without a copy.
    arrived: Bytes,
    /// The beginning of a line whose end has not come.
    begun: BytesMut,
    path: String,
}

impl WatchStream {
    pub(crate) fn new(body: Body, path: String) -> Self {
        Self { body, arrived: Bytes::new(), begun: BytesMut::new(), path }
    }

    /// The next event; `None` when the server ended the watch. After an error the watch is over.
    pub async fn next(&mut self) -> Option<Result<WatchEvent, Error>> {
        loop {
            if let Some(line) = self.take_line() {
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Some(self.decode(&line));
            }
            match self.body.frame().await? {
                Ok(frame) => {
                    if let Ok(data) = frame.into_data() {
                        self.arrived = data;
                    }
                    if self.begun.len() > MAX_EVENT_BYTES {
                        return Some(Err(self.broken("a watch event is larger than 64 MiB")));
                    }
                }
                Err(source) => {
                    return Some(Err(Error::Transport {
                        method: Method::GET,
                        path: self.path.clone(),
                        source,
                    }));
                }
            }
        }
    }

    fn take_line(&mut self) -> Option<Bytes> {
        let Some(end) = memchr::memchr(b'\n', &self.arrived) else {
            self.begun.extend_from_slice(&std::mem::take(&mut self.arrived));
            return None;
        };
        let rest = self.arrived.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.arrived, rest);
        line.truncate(end);
        if self.begun.is_empty() {
            return Some(line);
        }
        // Taken whole, so that the memory of a burst is not kept for the life of the watch.
        let mut whole = std::mem::take(&mut self.begun);
        whole.extend_from_slice(&line);
        Some(whole.freeze())
    }

    fn decode(&self, line: &Bytes) -> Result<WatchEvent, Error> {
        let (kind, object) = match cut(line) {
            Some(parts) => parts,
            None => parse(line).map_err(|source| Error::Decode {
                method: Method::GET,
                path: self.path.clone(),
                source,
            })?,
        };
        Ok(match kind {
            "ADDED" => WatchEvent::Added(object),
            "MODIFIED" => WatchEvent::Modified(object),
            "DELETED" => WatchEvent::Deleted(object),
            "BOOKMARK" => WatchEvent::Bookmark(object),
            "ERROR" => return Err(status_of(&object)),
            other => return Err(self.broken(&format!("the watch has an event of unknown type {other:?}"))),
        })
    }

    fn broken(&self, message: &str) -> Error {
        let source = crate::TransportError::broken(message.to_owned());
        Error::Transport { method: Method::GET, path: self.path.clone(), source }
    }
}

/// Takes a line apart by the only form in which servers write it; the object is read by those who want it.
fn cut(line: &Bytes) -> Option<(&str, Encoded)> {
    const BETWEEN: &[u8] = b"\",\"object\":";
    let rest = line.strip_prefix(b"{\"type\":\"")?;
    let length = memchr::memchr(b'"', rest)?;
    let object = rest[length..].strip_prefix(BETWEEN)?.strip_suffix(b"}")?;
    Some((std::str::from_utf8(&rest[..length]).ok()?, Encoded(line.slice_ref(object))))
}

/// Takes a line apart whatever its form.
fn parse(line: &Bytes) -> serde_json::Result<(&str, Encoded)> {
    #[derive(Deserialize)]
    struct Line<'a> {
        r#type: &'a str,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    let read: Line<'_> = serde_json::from_slice(line)?;
    Ok((read.r#type, Encoded(line.slice_ref(read.object.get().as_bytes()))))
}

fn status_of(status: &Encoded) -> Error {
    #[derive(Deserialize)]
    struct Code {
        code: u16,
    }
    let code = status.decode().map_or(500, |status: Code| status.code);
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Error::from_answer(code, None, &status.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::full_body;

    fn stream(text: &'static str) -> WatchStream {
        WatchStream::new(full_body(text), "/api/v1/pods".into())
    }

    #[tokio::test]
    async fn events_come_in_order_and_the_end_is_an_end() {
        let mut watch =
            stream("{\"type\":\"ADDED\",\"object\":{\"a\":1}}\n\n{\"type\":\"DELETED\",\"object\":{}}\n");
        assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Added(object))) if object.0 == "{\"a\":1}"));
        assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Deleted(_)))));
        assert!(watch.next().await.is_none());
    }

    #[tokio::test]
    async fn lines_are_read_in_any_form_and_across_pieces() {
        let mut watch = stream("");
        for piece in [
            "{ \"object\": {\"a\"",
            ": 1 }, \"type\": \"MODIFIED\" }\n{\"type\":\"BOOK",
            "MARK\",\"object\":{}}\n",
        ] {
            watch.arrived = Bytes::from(piece);
            let Some(line) = watch.take_line() else { continue };
            match watch.decode(&line).unwrap() {
                WatchEvent::Modified(object) => assert_eq!(object.0, "{\"a\": 1 }"),
                other => {
                    assert!(matches!(&other, WatchEvent::Bookmark(object) if object.0 == "{}"), "{other:?}")
                }
            }
            if !watch.arrived.is_empty() {
                assert!(watch.take_line().is_none());
            }
        }
        assert!(watch.begun.is_empty());
    }

    #[tokio::test]
    async fn an_error_event_carries_its_status() {
        let mut watch = stream(
            "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410,\"reason\":\"Expired\",\"message\":\"too old\"}}\n",
        );
        assert!(watch.next().await.unwrap().unwrap_err().is_expired());
    }
}
