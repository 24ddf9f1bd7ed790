//! A watch as a stream of events, cut out of the server's lines of JSON.

use bytes::{Buf, Bytes, BytesMut};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{Body, Error};

/// A line of a watch larger than this means that the server is not one of ours, nor upstream's.
const MAX_EVENT_BYTES: usize = 64 << 20;

/// One event, its object still encoded so that each reader decodes only what it uses.
#[derive(Debug)]
pub enum WatchEvent {
    Added(Box<RawValue>),
    Modified(Box<RawValue>),
    Deleted(Box<RawValue>),
    /// Nothing before this revision is missing.
    Bookmark(Box<RawValue>),
}

/// Events as they come. Dropping it ends the watch.
pub struct WatchStream {
    body: Body,
    buffer: BytesMut,
    /// How much of the buffer was already searched for a line end.
    searched: usize,
    path: String,
}

impl WatchStream {
    pub(crate) fn new(body: Body, path: String) -> Self {
        Self { body, buffer: BytesMut::new(), searched: 0, path }
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
                        self.buffer.extend_from_slice(&data);
                    }
                    if self.buffer.len() > MAX_EVENT_BYTES {
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
        let Some(offset) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.buffer.len();
            return None;
        };
        let line = self.buffer.split_to(self.searched + offset).freeze();
        self.buffer.advance(1);
        self.searched = 0;
        if self.buffer.is_empty() {
            // Gives the memory of a burst back instead of keeping it for the life of the watch.
            self.buffer = BytesMut::new();
        }
        Some(line)
    }

    fn decode(&self, line: &[u8]) -> Result<WatchEvent, Error> {
        #[derive(Deserialize)]
        struct Line {
            r#type: String,
            object: Box<RawValue>,
        }
        let line: Line = serde_json::from_slice(line).map_err(|source| Error::Decode {
            method: Method::GET,
            path: self.path.clone(),
            source,
        })?;
        Ok(match line.r#type.as_str() {
            "ADDED" => WatchEvent::Added(line.object),
            "MODIFIED" => WatchEvent::Modified(line.object),
            "DELETED" => WatchEvent::Deleted(line.object),
            "BOOKMARK" => WatchEvent::Bookmark(line.object),
            "ERROR" => return Err(status_of(line.object.get())),
            other => return Err(self.broken(&format!("the watch has an event of unknown type {other:?}"))),
        })
    }

    fn broken(&self, message: &str) -> Error {
        let source = crate::TransportError::broken(message.to_owned());
        Error::Transport { method: Method::GET, path: self.path.clone(), source }
    }
}

fn status_of(status: &str) -> Error {
    #[derive(Deserialize)]
    struct Code {
        code: u16,
    }
    let code = serde_json::from_str(status).map_or(500, |status: Code| status.code);
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Error::from_answer(code, None, status.as_bytes())
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
        assert!(
            matches!(watch.next().await, Some(Ok(WatchEvent::Added(object))) if object.get() == "{\"a\":1}")
        );
        assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Deleted(_)))));
        assert!(watch.next().await.is_none());
    }

    #[tokio::test]
    async fn an_error_event_carries_its_status() {
        let mut watch = stream(
            "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410,\"reason\":\"Expired\",\"message\":\"too old\"}}\n",
        );
        assert!(watch.next().await.unwrap().unwrap_err().is_expired());
    }
}
