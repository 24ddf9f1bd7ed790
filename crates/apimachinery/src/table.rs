//! The server-side tables that `kubectl get` prints.

use serde_json::{Map, Value};

/// A column header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableColumn {
    /// Header text.
    pub name: String,
    /// OpenAPI type of the cells.
    pub kind: String,
    /// OpenAPI format; `name` marks the primary column.
    pub format: String,
    /// What it shows.
    pub description: String,
    /// 0 is always shown, more is shown with `-o wide`.
    pub priority: i32,
}

impl TableColumn {
    /// The header on the wire.
    pub fn to_value(&self) -> Value {
        let mut out = Map::new();
        out.insert("name".into(), self.name.clone().into());
        out.insert("type".into(), self.kind.clone().into());
        out.insert("format".into(), self.format.clone().into());
        out.insert("description".into(), self.description.clone().into());
        out.insert("priority".into(), self.priority.into());
        Value::Object(out)
    }
}

/// A table object: `metadata` is the list's metadata, `rows` are made with [`row`].
pub fn table(metadata: Value, columns: &[TableColumn], rows: Vec<Value>) -> Value {
    let mut out = Map::new();
    out.insert("kind".into(), "Table".into());
    out.insert("apiVersion".into(), "meta.k8s.io/v1".into());
    out.insert("metadata".into(), metadata);
    out.insert("columnDefinitions".into(), columns.iter().map(TableColumn::to_value).collect());
    out.insert("rows".into(), Value::Array(rows));
    Value::Object(out)
}

/// A row: its cells, and the object (whole, metadata only, or none) that it stands for.
pub fn row(cells: Vec<Value>, object: Option<Value>) -> Value {
    let mut out = Map::new();
    out.insert("cells".into(), Value::Array(cells));
    out.insert("object".into(), object.unwrap_or_default());
    Value::Object(out)
}

/// The metadata-only view of an object.
pub fn partial_metadata(object: &Value) -> Value {
    let mut out = Map::new();
    out.insert("kind".into(), "PartialObjectMetadata".into());
    out.insert("apiVersion".into(), "meta.k8s.io/v1".into());
    out.insert(
        "metadata".into(),
        object.get("metadata").cloned().unwrap_or_else(|| Value::Object(Map::new())),
    );
    Value::Object(out)
}
