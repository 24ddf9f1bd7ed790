//! Makes the schemas of the built-in kinds from the source text of two packages that are never compiled:
//! `k8s-openapi` says what fields there are (JSON names, types, descriptions), `k8s-pb` says how protobuf
//! numbers them and how lists merge (markers in its comments). What neither says — which optional fields are
//! pointers in Go, and the tags of fields newer than `k8s-pb` — stands in `overlay/`.
//!
//! Out come a text table (`schemas.txt`, one line per type and field, see `write_table`) and the deflated
//! descriptions in the same order, followed by those of lists and query options (`further.txt` says which).

use std::{
    collections::{BTreeMap, HashMap},
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

mod build {
    pub mod golang;
    pub mod openapi;
    pub mod protobuf;
}

use build::{golang::Overlay, openapi::Openapi, protobuf::Messages};

/// The packages of kinds that are served, as k8s-openapi lays them out.
const PACKAGES: &[&str] = &[
    "api/admissionregistration/v1",
    "api/apps/v1",
    "api/authentication/v1",
    "api/authorization/v1",
    "api/autoscaling/v1",
    "api/autoscaling/v2",
    "api/batch/v1",
    "api/certificates/v1",
    "api/coordination/v1",
    "api/core/v1",
    "api/discovery/v1",
    "api/events/v1",
    "api/flowcontrol/v1",
    "api/networking/v1",
    "api/node/v1",
    "api/policy/v1",
    "api/rbac/v1",
    "api/resource/v1",
    "api/scheduling/v1",
    "api/storage/v1",
    "apiextensions_apiserver/pkg/apis/apiextensions/v1",
    "apimachinery/pkg/apis/meta/v1",
    "kube_aggregator/pkg/apis/apiregistration/v1",
];

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=overlay");
    println!("cargo::rerun-if-changed=../../Cargo.lock");

    let sources = locate(&manifest);
    let openapi = Openapi::read(&sources.openapi.join("src/v1_36"), PACKAGES);
    let messages = Messages::read(&sources.protobuf.join("src"), PACKAGES);
    let overlay = Overlay::read(&manifest.join("overlay/go-fields.txt"));
    let (table, mut descriptions) = write_table(&openapi, &messages, &overlay);
    fs::write(out.join("schemas.txt"), table).expect("OUT_DIR is writable");
    let further = write_further(&openapi, &messages, &mut descriptions);
    fs::write(out.join("further.txt"), further).expect("OUT_DIR is writable");
    let file = fs::File::create(out.join("descriptions.deflate")).expect("OUT_DIR is writable");
    let mut deflate = flate2::write::DeflateEncoder::new(file, flate2::Compression::new(6));
    deflate.write_all(descriptions.as_bytes()).expect("OUT_DIR is writable");
    deflate.finish().expect("OUT_DIR is writable");
}

struct Sources {
    openapi: PathBuf,
    protobuf: PathBuf,
}

/// Asks cargo where the packages are; from the local copy if possible, over the network otherwise.
fn locate(manifest: &Path) -> Sources {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let run = |offline: bool| {
        let mut command = Command::new(&cargo);
        command.args(["metadata", "--format-version", "1", "--locked"]).current_dir(manifest);
        if offline {
            command.arg("--offline");
        }
        command.output().ok().filter(|output| output.status.success())
    };
    let output = run(true).or_else(|| run(false)).expect("cargo metadata lists the packages in Cargo.lock");
    let text = String::from_utf8(output.stdout).expect("cargo metadata prints UTF-8");
    let find = |name: &str| {
        // A full JSON parse of some megabytes is slow in an unoptimised build script; the path is all we need.
        let mark = format!("/{name}-");
        let manifest = text
            .split("\"manifest_path\":\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .find(|path| {
                path.contains(&mark)
                    && path.ends_with("/Cargo.toml")
                    && !path.contains(&format!("{mark}derive"))
            })
            .unwrap_or_else(|| panic!("{name} is among the packages"));
        Path::new(manifest).parent().expect("a manifest has a directory").to_owned()
    };
    Sources { openapi: find("k8s-openapi"), protobuf: find("k8s-pb") }
}

/// One line per type, followed by one line per field:
/// ```text
/// T <definition> <Go name> [tag.via ...]        inlined messages after the names
/// F <json name> <tag> <via> <flags> <type>      flags: r required, p pointer, a always, m merge, k retainKeys, R replace
/// ```
/// Types are one letter for scalars, `#n` for the n-th type, `{x` map of x, `[...` lists; see `type_text`.
fn write_table(openapi: &Openapi, messages: &Messages, overlay: &Overlay) -> (String, String) {
    let mut table = String::new();
    let mut descriptions = String::new();
    let numbers: HashMap<&str, usize> =
        openapi.types.iter().enumerate().map(|(index, ty)| (ty.path.as_str(), index)).collect();
    for ty in &openapi.types {
        let wire = messages.layout(&ty.path, &ty.properties);
        let go = overlay.fields(&ty.path);
        table.push_str(&format!("T {} {}", ty.definition, ty.name));
        for (tag, via) in &wire.inlines {
            table.push_str(&format!(" {tag}.{via}"));
        }
        table.push('\n');
        descriptions.push_str(&ty.description);
        descriptions.push('\0');
        for property in &ty.properties {
            let slot = wire.slots.get(&property.name);
            let extra = go.get(&property.name);
            let tag = extra.and_then(|go| go.tag).or(slot.map(|slot| slot.tag)).unwrap_or(0);
            let marks = slot.map(|slot| slot.marks.clone()).unwrap_or_default();
            let marks = extra.and_then(|go| go.marks.clone()).unwrap_or(marks);
            let mut flags = String::from("-");
            if property.required {
                flags.push('r');
            }
            flags.push_str(extra.map_or("", |go| &go.flags));
            for strategy in marks.get("patchStrategy").into_iter().flatten().flat_map(|text| text.split(','))
            {
                flags.push(match strategy {
                    "merge" => 'm',
                    "retainKeys" => 'k',
                    "replace" => 'R',
                    other => panic!("unknown patch strategy {other} in {}", ty.path),
                });
            }
            let via = slot.map_or(0, |slot| slot.via);
            let kind = type_text(&property.schema, &marks, &numbers);
            table.push_str(&format!("F {} {tag} {via} {flags} {kind}\n", property.name));
            descriptions.push_str(&property.description);
            descriptions.push('\0');
        }
    }
    (table, descriptions)
}

/// The query options of verbs and subresources, below the packages.
const OPTIONS: &[&str] = &[
    "apimachinery/pkg/apis/meta/v1/CreateOptions",
    "apimachinery/pkg/apis/meta/v1/ListOptions",
    "apimachinery/pkg/apis/meta/v1/PatchOptions",
    "apimachinery/pkg/apis/meta/v1/UpdateOptions",
    "api/core/v1/NodeProxyOptions",
    "api/core/v1/PodAttachOptions",
    "api/core/v1/PodExecOptions",
    "api/core/v1/PodLogOptions",
    "api/core/v1/PodPortForwardOptions",
    "api/core/v1/PodProxyOptions",
    "api/core/v1/ServiceProxyOptions",
];

/// Types that the table spells as a letter, with the names of their definitions.
const SPECIAL: &[(&str, &str)] = &[
    ("apimachinery/pkg/api/resource/Quantity", "io.k8s.apimachinery.pkg.api.resource.Quantity"),
    ("apimachinery/pkg/util/intstr/IntOrString", "io.k8s.apimachinery.pkg.util.intstr.IntOrString"),
    ("apimachinery/pkg/runtime/RawExtension", "io.k8s.apimachinery.pkg.runtime.RawExtension"),
    ("apimachinery/pkg/apis/meta/v1/FieldsV1", "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1"),
    ("apimachinery/pkg/apis/meta/v1/MicroTime", "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime"),
    ("apimachinery/pkg/apis/meta/v1/Patch", "io.k8s.apimachinery.pkg.apis.meta.v1.Patch"),
    ("apimachinery/pkg/apis/meta/v1/Time", "io.k8s.apimachinery.pkg.apis.meta.v1.Time"),
    ("apimachinery/pkg/apis/meta/v1/WatchEvent", "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent"),
    (
        "apiextensions_apiserver/pkg/apis/apiextensions/v1/JSON",
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON",
    ),
];

/// What has descriptions but no schema in the table. A line is `definition` or `definition field`, in the order of the
/// texts; options go by their bare names, and their fields by small letters.
fn write_further(openapi: &Openapi, messages: &Messages, descriptions: &mut String) -> String {
    let mut lines = String::new();
    let mut add = |name: &str, path: &str| {
        let Some((own, fields)) = messages.descriptions(path) else { return };
        for (field, text) in [("", own)].into_iter().chain(fields) {
            lines.push_str(format!("{name} {field}").trim_end());
            lines.push('\n');
            descriptions.push_str(text);
            descriptions.push('\0');
        }
    };
    for ty in openapi.types.iter().filter(|ty| ty.properties.iter().any(|own| own.name == "metadata")) {
        add(&format!("{}List", ty.definition), &format!("{}List", ty.path));
    }
    for (path, definition) in SPECIAL {
        add(definition, path);
    }
    for path in OPTIONS {
        add(path.rsplit('/').next().unwrap_or_default(), path);
    }
    lines
}

type Marks = BTreeMap<String, Vec<String>>;

fn type_text(schema: &build::openapi::Shape, marks: &Marks, numbers: &HashMap<&str, usize>) -> String {
    use build::openapi::Shape;
    let none = Marks::new();
    match schema {
        Shape::Scalar(letter) => letter.to_string(),
        Shape::Reference(path) => match path.rsplit('/').next().unwrap_or_default() {
            "Quantity" => "q".into(),
            "IntOrString" => "o".into(),
            "Time" => "t".into(),
            "MicroTime" => "u".into(),
            "Duration" => "D".into(),
            "RawExtension" => "x".into(),
            "JSON" => "j".into(),
            "FieldsV1" => "f".into(),
            "JSONSchemaPropsOrBool" => format!("|b#{}", numbers[parent(path).as_str()]),
            "JSONSchemaPropsOrArray" => format!("|a#{}", numbers[parent(path).as_str()]),
            "JSONSchemaPropsOrStringArray" => format!("|s#{}", numbers[parent(path).as_str()]),
            _ => format!("#{}", numbers.get(path.as_str()).unwrap_or_else(|| panic!("{path} was read"))),
        },
        Shape::Map(value) => {
            let atomic = marks.get("mapType").is_some_and(|list| list.iter().any(|text| text == "atomic"));
            let inner: Marks =
                marks.get_key_value("wrapped").map(|(k, v)| (k.clone(), v.clone())).into_iter().collect();
            format!("{{{}{}", if atomic { "!" } else { "" }, type_text(value, &inner, numbers))
        }
        Shape::List(items) => {
            let kind = match marks.get("listType").and_then(|list| list.last()).map(String::as_str) {
                Some("map") => {
                    format!("m{}", marks.get("listMapKey").map(|keys| keys.join(",")).unwrap_or_default())
                }
                Some("set") => "s".into(),
                _ => "a".into(),
            };
            let merge = marks.get("patchMergeKey").and_then(|keys| keys.first()).cloned().unwrap_or_default();
            let wrap = if marks.contains_key("wrapped") { "w" } else { "" };
            format!("[{kind}:{merge}:{wrap}]{}", type_text(items, &none, numbers))
        }
    }
}

fn parent(path: &str) -> String {
    let (dir, _) = path.rsplit_once('/').unwrap_or(("", path));
    format!("{dir}/JSONSchemaProps")
}
