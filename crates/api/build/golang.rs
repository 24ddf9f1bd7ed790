//! Reads the overlay of facts that only upstream's Go types say.
//!
//! One line per type: its path, then its fields. `*name` is a pointer to a scalar (zero differs from absent),
//! `=name` is always written, `name#7` gives a protobuf tag, `name+listType:map+listMapKey:x` gives markers.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
};

#[derive(Default, Clone)]
pub struct GoField {
    pub flags: String,
    pub tag: Option<u16>,
    pub marks: Option<BTreeMap<String, Vec<String>>>,
}

pub struct Overlay {
    types: HashMap<String, HashMap<String, GoField>>,
}

impl Overlay {
    pub fn read(path: &Path) -> Self {
        let mut types: HashMap<String, HashMap<String, GoField>> = HashMap::new();
        let text = fs::read_to_string(path).unwrap_or_else(|err| panic!("read {}: {err}", path.display()));
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let mut words = line.split(' ');
            let fields = types.entry(words.next().unwrap_or_default().to_owned()).or_default();
            for word in words {
                let name = word.trim_start_matches(['*', '=']);
                let mut field = GoField::default();
                for mark in word[..word.len() - name.len()].chars() {
                    field.flags.push(if mark == '*' { 'p' } else { 'a' });
                }
                let mut parts = name.split('+');
                let name = parts.next().unwrap_or_default();
                let (name, tag) = name.split_once('#').unwrap_or((name, ""));
                field.tag = tag.parse().ok();
                let mut marks: BTreeMap<String, Vec<String>> = BTreeMap::new();
                for part in parts {
                    let (key, value) = part.split_once(':').unwrap_or((part, ""));
                    marks.entry(key.to_owned()).or_default().push(value.to_owned());
                }
                field.marks = (!marks.is_empty()).then_some(marks);
                fields.insert(name.to_owned(), field);
            }
        }
        Self { types }
    }

    pub fn fields(&self, path: &str) -> HashMap<String, GoField> {
        self.types.get(path).cloned().unwrap_or_default()
    }
}
