//! What is done with every request from the network before anybody asks who sends it, and with every answer: origins of
//! browsers, transport security, asking HTTP/2 clients to connect anew, sending clients elsewhere while stopping.

use std::sync::atomic::{AtomicBool, Ordering};

use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use regex_lite::Regex;

use crate::body::Body;
use crate::listen::Connection;
use crate::settings::Settings;

/// Paths that are served to the end.
const TO_THE_END: [&str; 4] = ["/readyz", "/livez", "/healthz", "/metrics"];

/// What browsers are told about an origin that may ask, besides the origin itself.
const CORS: [(HeaderName, &str); 4] = [
    (header::ACCESS_CONTROL_ALLOW_METHODS, "POST, GET, OPTIONS, PUT, DELETE, PATCH"),
    (
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since",
    ),
    (header::ACCESS_CONTROL_EXPOSE_HEADERS, "Date"),
    (header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true"),
];

/// See the module.
#[derive(Default)]
pub struct Front {
    origins: Vec<Regex>,
    strict_transport: Option<HeaderValue>,
    goaway_chance: f64,
    refusing: AtomicBool,
}

/// What stays to be done with the answer.
pub struct Pass {
    origin: Option<HeaderValue>,
}

impl Front {
    /// Reads the expressions; says which one is none.
    pub fn new(settings: &Settings) -> Result<Self, String> {
        let origins = settings.cors_origins.iter().map(|text| {
            Regex::new(text).map_err(|error| format!("{text:?} is no regular expression: {error}"))
        });
        let directives = settings.strict_transport.join("; ");
        Ok(Self {
            origins: origins.collect::<Result<_, _>>()?,
            strict_transport: (!directives.is_empty())
                .then(|| HeaderValue::from_str(&directives).map_err(|error| error.to_string()))
                .transpose()?,
            goaway_chance: settings.goaway_chance,
            refusing: AtomicBool::new(false),
        })
    }

    /// From now on clients are asked to come back later.
    pub fn refuse(&self) {
        self.refusing.store(true, Ordering::Release);
    }

    /// Looks at a request. The error is an answer. `dice` is between 0 and 1.
    pub fn enter(
        &self,
        connection: &Connection,
        request: &Request<Body>,
        dice: impl FnOnce() -> f64,
    ) -> Result<Pass, Box<Response<Body>>> {
        if self.goaway_chance > 0.0 && request.version() == Version::HTTP_2 && dice() < self.goaway_chance {
            connection.leave.request();
        }
        let origin = request.headers().get(header::ORIGIN).filter(|value| self.allows(value)).cloned();
        let pass = Pass { origin };
        if pass.origin.is_some() && request.method() == Method::OPTIONS {
            let mut answer = Response::new(Body::Empty);
            *answer.status_mut() = StatusCode::NO_CONTENT;
            return Err(Box::new(self.finish(pass, answer)));
        }
        let path = request.uri().path();
        if self.refusing.load(Ordering::Acquire) && !TO_THE_END.iter().any(|own| path.starts_with(own)) {
            connection.leave.request();
            let mut answer = Response::new(Body::from(
                "The apiserver is shutting down, please try again later.\n".to_owned(),
            ));
            *answer.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
            if request.version() < Version::HTTP_2 {
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            return Err(Box::new(self.finish(pass, answer)));
        }
        Ok(pass)
    }

    fn allows(&self, origin: &HeaderValue) -> bool {
        origin.to_str().is_ok_and(|text| self.origins.iter().any(|own| own.is_match(text)))
    }

    /// Adds to an answer what clients are told in every one.
    pub fn finish(&self, pass: Pass, mut answer: Response<Body>) -> Response<Body> {
        let headers: &mut HeaderMap = answer.headers_mut();
        if let Some(value) = &self.strict_transport {
            headers.entry(header::STRICT_TRANSPORT_SECURITY).or_insert(value.clone());
        }
        if let Some(origin) = pass.origin {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            for (name, value) in CORS {
                headers.insert(name, HeaderValue::from_static(value));
            }
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: Method, path: &str, origin: &str) -> Request<Body> {
        let request = Request::builder().method(method).uri(path).version(Version::HTTP_2);
        request.header(header::ORIGIN, origin).body(Body::Empty).unwrap()
    }

    #[test]
    fn origins_are_answered_and_the_others_pass() {
        let settings = Settings {
            cors_origins: vec![r"//example\.org(:|$)".to_owned()],
            strict_transport: vec!["max-age=1".to_owned(), "preload".to_owned()],
            ..Settings::default()
        };
        let (front, connection) = (Front::new(&settings).unwrap(), Connection::for_tests());
        let flight =
            front.enter(&connection, &request(Method::OPTIONS, "/api", "https://example.org"), || 1.0);
        let answer = flight.err().expect("answered at once");
        assert_eq!(answer.status(), StatusCode::NO_CONTENT);
        assert_eq!(answer.headers()[header::ACCESS_CONTROL_ALLOW_ORIGIN], "https://example.org");
        assert_eq!(answer.headers()[header::STRICT_TRANSPORT_SECURITY], "max-age=1; preload");
        let pass =
            front.enter(&connection, &request(Method::GET, "/api", "https://evil.org"), || 1.0).ok().unwrap();
        let answer = front.finish(pass, Response::new(Body::Empty));
        assert!(!answer.headers().contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN));
        assert!(Front::new(&Settings { cors_origins: vec!["(".to_owned()], ..settings }).is_err());
    }

    #[test]
    fn the_dice_close_connections_and_a_stop_sends_clients_away() {
        let settings = Settings { goaway_chance: 0.01, ..Settings::default() };
        let (front, connection) = (Front::new(&settings).unwrap(), Connection::for_tests());
        assert!(front.enter(&connection, &request(Method::GET, "/api", "x"), || 0.02).is_ok());
        assert!(!connection.leave.is_requested());
        assert!(front.enter(&connection, &request(Method::GET, "/api", "x"), || 0.001).is_ok());
        assert!(connection.leave.is_requested());
        front.refuse();
        let refused = front.enter(&connection, &request(Method::GET, "/api", "x"), || 1.0).err().unwrap();
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()[header::RETRY_AFTER]),
            (429, &HeaderValue::from_static("5"))
        );
        assert!(front.enter(&connection, &request(Method::GET, "/readyz", "x"), || 1.0).is_ok());
    }
}
