//! Texts of cached objects that take little room: a [`Word`] is kept once however many objects say it, a [`Short`] lies where its
//! owner lies. Both are read as `str`.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::ops::Deref;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A text that many objects have in common: a namespace, the name of a node, a phase. `None` is the empty one.
#[derive(Clone, Default)]
pub struct Word(Option<Arc<str>>);

/// The words that are alive, by hash. Of two different ones with the same hash the second is not shared.
#[derive(Default)]
struct Words {
    known: HashMap<u64, Weak<str>>,
    sweep_at: usize,
}

/// Below this many words nothing is swept.
const FEW: usize = 1024;

static WORDS: LazyLock<Mutex<Words>> = LazyLock::new(Mutex::default);
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl Words {
    fn find(&mut self, text: &str) -> Arc<str> {
        let hash = HASHER.hash_one(text);
        match self.known.get(&hash).and_then(Weak::upgrade) {
            Some(known) if *known == *text => known,
            Some(_) => text.into(),
            None => {
                if self.known.len() >= self.sweep_at {
                    self.known.retain(|_, word| word.strong_count() > 0);
                    self.known.shrink_to_fit();
                    self.sweep_at = FEW.max(self.known.len() * 2);
                }
                let word: Arc<str> = text.into();
                self.known.insert(hash, Arc::downgrade(&word));
                word
            }
        }
    }
}

impl From<&str> for Word {
    fn from(text: &str) -> Self {
        let find = || WORDS.lock().unwrap_or_else(PoisonError::into_inner).find(text);
        Self((!text.is_empty()).then(find))
    }
}

impl Deref for Word {
    type Target = str;

    fn deref(&self) -> &str {
        self.0.as_deref().unwrap_or("")
    }
}

/// How many bytes a [`Short`] holds without room elsewhere: a revision, nearly every IPv4 address.
const INLINE: usize = 14;

/// A text that is nearly always short.
#[derive(Clone)]
pub struct Short(Form);

#[derive(Clone)]
enum Form {
    Inline { length: u8, bytes: [u8; INLINE] },
    Long(Box<Box<str>>),
}

impl From<&str> for Short {
    fn from(text: &str) -> Self {
        let mut bytes = [0; INLINE];
        match bytes.get_mut(..text.len()) {
            Some(place) => {
                place.copy_from_slice(text.as_bytes());
                // At most INLINE.
                Self(Form::Inline { length: text.len() as u8, bytes })
            }
            None => Self(Form::Long(Box::new(text.into()))),
        }
    }
}

impl Default for Short {
    fn default() -> Self {
        Self::from("")
    }
}

impl Deref for Short {
    type Target = str;

    fn deref(&self) -> &str {
        match &self.0 {
            // The bytes were copied from a text.
            Form::Inline { length, bytes } => {
                std::str::from_utf8(&bytes[..usize::from(*length)]).unwrap_or_default()
            }
            Form::Long(text) => text,
        }
    }
}

macro_rules! read_as_str {
    ($type:ident) => {
        impl From<String> for $type {
            fn from(text: String) -> Self {
                Self::from(&*text)
            }
        }

        impl From<&$type> for Box<str> {
            fn from(text: &$type) -> Self {
                (**text).into()
            }
        }

        impl From<$type> for Box<str> {
            fn from(text: $type) -> Self {
                (*text).into()
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                self
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                self
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&**self, out)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&**self, out)
            }
        }

        impl PartialEq for $type {
            fn eq(&self, other: &Self) -> bool {
                **self == **other
            }
        }

        impl Eq for $type {}

        impl PartialEq<str> for $type {
            fn eq(&self, other: &str) -> bool {
                **self == *other
            }
        }

        impl PartialEq<&str> for $type {
            fn eq(&self, other: &&str) -> bool {
                **self == **other
            }
        }

        impl PartialEq<Box<str>> for $type {
            fn eq(&self, other: &Box<str>) -> bool {
                **self == **other
            }
        }

        impl PartialOrd for $type {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for $type {
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                (**self).cmp(&**other)
            }
        }

        impl Hash for $type {
            fn hash<H: Hasher>(&self, state: &mut H) {
                (**self).hash(state);
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
                output.serialize_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
                struct Reader;
                impl Visitor<'_> for Reader {
                    type Value = $type;

                    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                        out.write_str("a string")
                    }

                    fn visit_str<E: Error>(self, text: &str) -> Result<$type, E> {
                        Ok($type::from(text))
                    }
                }
                input.deserialize_str(Reader)
            }
        }
    };
}
read_as_str!(Word);
read_as_str!(Short);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_words_are_one_and_dead_ones_are_swept() {
        let (one, other) = (Word::from("a-node"), Word::from("a-node"));
        assert!(Arc::ptr_eq(one.0.as_ref().unwrap(), other.0.as_ref().unwrap()));
        assert_eq!((Word::from(""), &*Word::default()), (Word::default(), ""));
        assert_eq!(serde_json::from_str::<Word>(r#""a\u002dnode""#).unwrap(), one);
        let mut words = Words::default();
        for number in 0..FEW * 4 {
            drop(words.find(&number.to_string()));
        }
        assert!(words.known.len() <= FEW, "{}", words.known.len());
    }

    #[test]
    fn a_short_text_of_any_length_reads_as_it_was_written() {
        assert_eq!(size_of::<Short>(), 16);
        for text in ["", "1", "ä", "12345678901234", "123456789012345", "fd00:10:128::1234:5678"] {
            let short = Short::from(text);
            assert_eq!((&*short, &short.clone()), (text, &short));
        }
    }
}
