//! What several components read alike of Services and EndpointSlices; the structs themselves are each one's own.

use serde::{Deserialize, Deserializer};

use crate::metadata::{Key, Metadata};

/// The label by which a slice names its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The index of slices by the key of their Service.
pub const BY_SERVICE: &str = "service";

/// The Service that a slice belongs to.
pub fn service_of(slice: &Metadata) -> Option<Key> {
    slice.labels.get(SERVICE_NAME).map(|name| Key::new(&slice.namespace, name))
}

/// Files a slice under its Service, for `Projection::indices`.
pub fn file_by_service(slice: &Metadata, add: &mut dyn FnMut(&'static str, &str)) {
    if let Some(service) = service_of(slice) {
        add(BY_SERVICE, &service.to_string());
    }
}

/// The protocol of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub enum Protocol {
    #[default]
    #[serde(rename = "TCP")]
    Tcp,
    #[serde(rename = "UDP")]
    Udp,
    #[serde(rename = "SCTP")]
    Sctp,
}

impl Protocol {
    /// Its number in an IP header.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// Reads a field that may be written as `null`, which is how Go writes an absent list. For `deserialize_with`.
pub fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default)]
    struct Ports {
        #[serde(deserialize_with = "nullable")]
        ports: Vec<Protocol>,
    }

    #[test]
    fn absence_has_three_spellings() {
        for (text, expected) in
            [("{}", vec![]), (r#"{"ports":null}"#, vec![]), (r#"{"ports":["SCTP"]}"#, vec![Protocol::Sctp])]
        {
            assert_eq!(serde_json::from_str::<Ports>(text).unwrap(), Ports { ports: expected }, "{text}");
        }
    }

    #[test]
    fn a_slice_is_filed_under_its_service() {
        let read = |text: &str| serde_json::from_str::<Metadata>(text).unwrap();
        let mut filed = Vec::new();
        let mut add = |index: &'static str, value: &str| filed.push((index, value.to_owned()));
        file_by_service(&read(r#"{"namespace":"n","labels":{"kubernetes.io/service-name":"s"}}"#), &mut add);
        file_by_service(&read(r#"{"namespace":"n"}"#), &mut add);
        assert_eq!(filed, [(BY_SERVICE, "n/s".to_owned())]);
    }
}
