//! Media types: which form of an object the client sent, and which it wants back.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue, USER_AGENT};

/// How bytes encode an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// application/json
    Json,
    /// application/yaml
    Yaml,
    /// application/vnd.kubernetes.protobuf
    Protobuf,
}

impl Format {
    /// The media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }
}

/// What an object is turned into before it is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// Itself.
    Object,
    /// A Table of `meta.k8s.io/v1`.
    Table,
    /// PartialObjectMetadata, alone or of a list's items.
    Metadata,
}

/// What the client wants back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The encoding.
    pub format: Format,
    /// The shape.
    pub shape: Shape,
    /// Whether to indent JSON.
    pub pretty: bool,
    /// Whether tables and metadata are asked for by their old version.
    pub beta: bool,
}

impl Accepted {
    /// Plain JSON.
    pub const JSON: Self = Self { format: Format::Json, shape: Shape::Object, pretty: false, beta: false };
}

/// A media range of an Accept header.
#[derive(Debug, Default)]
pub struct MediaRange<'a> {
    /// `application/json`
    pub media: &'a str,
    /// The parameters except q.
    pub parameters: Vec<(&'a str, &'a str)>,
    quality: f32,
}

impl MediaRange<'_> {
    /// A parameter's value.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
    }
}

/// The ranges of an Accept header, most wanted first.
pub fn media_ranges(header: &str) -> Vec<MediaRange<'_>> {
    let mut ranges: Vec<MediaRange<'_>> = header
        .split(',')
        .filter_map(|part| {
            let mut words = part.split(';').map(str::trim);
            let media = words.next().filter(|media| !media.is_empty())?;
            let mut range = MediaRange { media, parameters: Vec::new(), quality: 1.0 };
            for word in words {
                let Some((name, value)) = word.split_once('=') else { continue };
                match name.trim() {
                    "q" => range.quality = value.trim().parse().unwrap_or(0.0),
                    name => range.parameters.push((name, value.trim())),
                }
            }
            Some(range)
        })
        .collect();
    ranges.sort_by(|one, two| two.quality.total_cmp(&one.quality));
    ranges
}

/// The value of the Accept header(s).
pub fn accept_header(headers: &HeaderMap) -> Cow<'_, str> {
    let mut values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let Some(first) = values.next() else { return Cow::Borrowed("") };
    match values.next() {
        None => Cow::Borrowed(first),
        Some(second) => Cow::Owned([first, second].into_iter().chain(values).collect::<Vec<_>>().join(",")),
    }
}

/// Browsers and the tools with which people look at answers get them laid out for reading.
fn is_read_by_people(headers: &HeaderMap) -> bool {
    let agent = headers.get(USER_AGENT).map_or(&b""[..], |agent| agent.as_bytes());
    [&b"curl"[..], b"Wget", b"Mozilla/5.0"].iter().any(|tool| agent.starts_with(tool))
}

/// Whether JSON is laid out for reading; `said` is the parameter `pretty`.
fn is_pretty(headers: &HeaderMap, said: Option<&str>) -> bool {
    match said.filter(|text| !text.is_empty()) {
        Some(text) => matches!(text, "1" | "t" | "T" | "true" | "True" | "TRUE"),
        None => is_read_by_people(headers),
    }
}

/// Picks the first wanted form that can be served. `shapes`: the resource can be shown as table or metadata;
/// `protobuf`: it has a protobuf form; `pretty`: the parameter of that name.
pub fn accept(headers: &HeaderMap, shapes: bool, protobuf: bool, pretty: Option<&str>) -> Option<Accepted> {
    Wishes::read(&accept_header(headers)).pick(shapes, protobuf, is_pretty(headers, pretty))
}

/// The same, and [`is_known_media`], in one reading of the header.
pub fn accept_and_known(
    headers: &HeaderMap,
    shapes: bool,
    protobuf: bool,
    pretty: Option<&str>,
) -> (Option<Accepted>, bool) {
    let header = accept_header(headers);
    let wishes = Wishes::read(&header);
    (wishes.pick(shapes, protobuf, is_pretty(headers, pretty)), wishes.are_known())
}

/// What is kept of a request's headers to tell the client what went wrong in a form that it takes.
pub struct Plain {
    accept: Vec<HeaderValue>,
    pretty: bool,
}

impl Plain {
    /// Keeps it; `pretty` is the parameter of that name.
    pub fn new(headers: &HeaderMap, pretty: Option<&str>) -> Self {
        Self { accept: headers.get_all(ACCEPT).iter().cloned().collect(), pretty: is_pretty(headers, pretty) }
    }

    /// The form. Only those who are refused need it.
    pub fn form(&self) -> Accepted {
        let values: Vec<&str> = self.accept.iter().filter_map(|value| value.to_str().ok()).collect();
        Wishes::read(&values.join(",")).pick(false, true, self.pretty).unwrap_or(Accepted::JSON)
    }
}

/// A read Accept header; nothing if none was sent.
struct Wishes<'a>(Option<Vec<MediaRange<'a>>>);

impl<'a> Wishes<'a> {
    fn read(header: &'a str) -> Self {
        Self((!header.is_empty()).then(|| media_ranges(header)))
    }

    fn are_known(&self) -> bool {
        let known = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "*/*"];
        let is_known = |ranges: &Vec<MediaRange<'_>>| ranges.iter().any(|range| known.contains(&range.media));
        self.0.as_ref().is_none_or(is_known)
    }

    fn pick(&self, shapes: bool, protobuf: bool, pretty: bool) -> Option<Accepted> {
        let Some(ranges) = &self.0 else {
            return Some(Accepted { pretty, ..Accepted::JSON });
        };
        ranges.iter().find_map(|range| {
            let format = match range.media {
                "application/json" | "application/*" | "*/*" => Format::Json,
                "application/yaml" => Format::Yaml,
                "application/vnd.kubernetes.protobuf" if protobuf => Format::Protobuf,
                _ => return None,
            };
            let shape = match range.parameter("as") {
                None => Shape::Object,
                Some(name) if range.parameter("g") == Some("meta.k8s.io") && shapes => {
                    match (name, range.parameter("v")) {
                        ("Table", Some("v1" | "v1beta1")) => Shape::Table,
                        ("PartialObjectMetadata" | "PartialObjectMetadataList", Some("v1" | "v1beta1")) => {
                            Shape::Metadata
                        }
                        _ => return None,
                    }
                }
                Some(_) => return None,
            };
            // Tables exist only as text.
            if shape == Shape::Table && format == Format::Protobuf {
                return None;
            }
            let pretty =
                pretty || range.parameter("pretty") == Some("1") || range.parameter("pretty") == Some("true");
            let beta = shape != Shape::Object && range.parameter("v") == Some("v1beta1");
            Some(Accepted { format, shape, pretty, beta })
        })
    }
}

/// The format in which a client wants the aggregated form of discovery, if it wants that rather than the old one.
pub fn aggregated_discovery(headers: &HeaderMap) -> Option<Format> {
    let header = accept_header(headers);
    let ranges = media_ranges(&header);
    let taken = ranges.iter().find_map(|range| {
        let format = match range.media {
            "application/json" | "application/*" | "*/*" => Format::Json,
            "application/yaml" => Format::Yaml,
            "application/vnd.kubernetes.protobuf" => Format::Protobuf,
            _ => return None,
        };
        let kind = ["g", "v", "as"].map(|name| range.parameter(name).unwrap_or_default());
        match kind {
            ["apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList"] => Some(Some(format)),
            [_, _, ""] => Some(None),
            _ => None,
        }
    });
    taken.flatten()
}

/// Whether one of the wanted media types is served, if only in another shape: who asks is then answered by those who
/// look at shapes. Upstream's router does not know `application/*`.
pub fn is_known_media(headers: &HeaderMap) -> bool {
    Wishes::read(&accept_header(headers)).are_known()
}

/// The format of a request body; `None` if it is none that is understood. Nothing said means JSON.
pub fn content_format(headers: &HeaderMap) -> Option<Format> {
    // A parameter without a value makes the whole of it unreadable.
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if value.split(';').skip(1).any(|word| !word.trim().is_empty() && !word.contains('=')) {
        return None;
    }
    match content_type(headers).as_str() {
        "" | "application/json" | "text/json" => Some(Format::Json),
        "application/yaml" | "application/x-yaml" | "text/yaml" => Some(Format::Yaml),
        "application/vnd.kubernetes.protobuf" => Some(Format::Protobuf),
        _ => None,
    }
}

/// The media type of a request body without parameters.
pub fn content_type(headers: &HeaderMap) -> String {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(accept: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        headers
    }

    #[test]
    fn the_first_servable_form_wins() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        let cases = [
            (table, true, true, Some((Format::Json, Shape::Table))),
            (table, false, true, Some((Format::Json, Shape::Object))),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                true,
                true,
                Some((Format::Protobuf, Shape::Object)),
            ),
            ("application/vnd.kubernetes.protobuf, */*", true, false, Some((Format::Json, Shape::Object))),
            ("application/json;as=Table;v=v1;g=meta.k8s.io", false, true, None),
            (
                "application/json;as=Table;v=v1beta1;g=meta.k8s.io",
                true,
                true,
                Some((Format::Json, Shape::Table)),
            ),
            ("application/json;as=Table;v=v2;g=meta.k8s.io", true, true, None),
            ("text/html", true, true, None),
            ("text/html,*/*;q=0.5", true, true, Some((Format::Json, Shape::Object))),
            ("application/json;q=0.1,application/yaml", true, true, Some((Format::Yaml, Shape::Object))),
            (
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                true,
                true,
                Some((Format::Json, Shape::Metadata)),
            ),
        ];
        for (header, shapes, protobuf, want) in cases {
            let got = accept(&with(header), shapes, protobuf, None)
                .map(|accepted| (accepted.format, accepted.shape));
            assert_eq!(got, want, "{header}");
        }
        assert_eq!(accept(&HeaderMap::new(), true, true, None), Some(Accepted::JSON));
        for (agent, parameter, pretty) in [
            ("curl/8.5", None, true),
            ("curl/8.5", Some("false"), false),
            ("Mozilla/5.0 (X11)", Some(""), true),
            ("kubectl/v1.36.4", None, false),
            ("kubectl/v1.36.4", Some("true"), true),
        ] {
            let headers = HeaderMap::from_iter([(USER_AGENT, agent.parse().expect("a value"))]);
            let accepted = accept(&headers, true, true, parameter).expect("something");
            assert_eq!(accepted.pretty, pretty, "{agent} {parameter:?}");
        }
    }

    #[test]
    fn one_reading_of_the_header_says_what_two_would() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        for header in
            ["", ",", table, "text/html", "application/*", "application/yaml, text/html", "*/*;q=0.1"]
        {
            for shapes in [true, false] {
                let headers = with(header);
                let both = accept_and_known(&headers, shapes, true, None);
                assert_eq!(
                    both,
                    (accept(&headers, shapes, true, None), is_known_media(&headers)),
                    "{header}"
                );
            }
            let (plain, whole) =
                (Plain::new(&with(header), Some("1")), accept(&with(header), false, true, Some("1")));
            assert_eq!(plain.form(), whole.unwrap_or(Accepted::JSON), "{header}");
        }
        let mut two = with("text/html");
        two.append(ACCEPT, HeaderValue::from_static("application/yaml"));
        assert_eq!(accept_header(&two), "text/html,application/yaml");
        assert_eq!(Plain::new(&two, None).form().format, Format::Yaml);
    }
}
