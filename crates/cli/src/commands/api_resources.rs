//! `api-resources` and `api-versions`: what the server serves.

use std::io::Write;

use clap::Args;
use serde_json::{Value, json};

use crate::error::{CliError, message};
use crate::print::tabwriter::TabWriter;
use crate::session::Session;
use crate::session::discovery::{ApiResource, Discovery, group_version};

/// Print the supported API resources on the server
#[derive(Args, Debug)]
pub struct ApiResources {
    /// Limit to resources in the specified API group
    #[arg(long)]
    api_group: Option<String>,
    /// If false, non-namespaced resources will be returned, otherwise returning namespaced resources by default
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    namespaced: Option<bool>,
    /// Limit to resources that support the specified verbs
    #[arg(long, value_delimiter = ',')]
    verbs: Vec<String>,
    /// Limit to resources that belong to the specified categories
    #[arg(long, value_delimiter = ',')]
    categories: Vec<String>,
    /// When using the default or custom-column output format, don't print headers
    #[arg(long)]
    no_headers: bool,
    /// If non-empty, sort list of resources using specified field; one of (name, kind)
    #[arg(long, default_value = "", hide_default_value = true)]
    sort_by: String,
    /// Use the cached list of resources if available
    #[arg(long)]
    cached: bool,
    /// Output format; one of: (json, yaml, name, wide)
    #[arg(short, long, default_value = "", hide_default_value = true)]
    output: String,
}

impl ApiResources {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        if !matches!(self.output.as_str(), "" | "wide" | "name" | "json" | "yaml") {
            return Err(message(format!("--output {} is not available", self.output)));
        }
        if !matches!(self.sort_by.as_str(), "" | "name" | "kind") {
            return Err(message("--sort-by accepts only name or kind"));
        }
        let discovery = match self.cached {
            true => session.discovery().await?,
            false => match session.rediscover().await? {
                Some(fresh) => fresh,
                None => session.discovery().await?,
            },
        };
        let resources = self.select(&discovery);
        match self.output.as_str() {
            "name" => {
                for resource in resources {
                    writeln!(out, "{}", resource.group_resource())?;
                }
            }
            "json" | "yaml" => {
                let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "",
                    "resources": resources.into_iter().map(described).collect::<Vec<_>>()});
                match self.output.as_str() {
                    "json" => writeln!(out, "{}", crate::print::json::pretty(&list))?,
                    _ => out.write_all(apimachinery::yaml::write(&list).as_bytes())?,
                }
            }
            form => {
                let wide = form == "wide";
                let mut table = TabWriter::table();
                if !self.no_headers {
                    let mut header = vec!["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"];
                    if wide {
                        header.extend(["VERBS", "CATEGORIES"]);
                    }
                    table.row(header.into_iter().map(str::to_owned).collect());
                }
                for resource in resources {
                    let mut row = vec![
                        resource.name.clone(),
                        resource.short.join(","),
                        resource.api_version(),
                        resource.namespaced.to_string(),
                        resource.kind.clone(),
                    ];
                    if wide {
                        row.extend([resource.verbs.join(","), resource.categories.join(",")]);
                    }
                    table.row(row);
                }
                out.write_all(table.finish().as_bytes())?;
            }
        }
        Ok(())
    }

    fn select<'a>(&self, discovery: &'a Discovery) -> Vec<&'a ApiResource> {
        let has_all = |own: &[String], wanted: &[String]| wanted.iter().all(|word| own.contains(word));
        let mut found: Vec<&ApiResource> = discovery
            .preferred()
            .into_iter()
            .filter(|resource| !resource.verbs.is_empty())
            .filter(|resource| self.api_group.as_ref().is_none_or(|group| *group == resource.group))
            .filter(|resource| self.namespaced.is_none_or(|wanted| wanted == resource.namespaced))
            .filter(|resource| has_all(&resource.verbs, &self.verbs))
            .filter(|resource| has_all(&resource.categories, &self.categories))
            .collect();
        found.sort_by(|a, b| match self.sort_by.as_str() {
            "name" => a.name.cmp(&b.name),
            "kind" => a.kind.cmp(&b.kind),
            _ => a.group.cmp(&b.group).then_with(|| a.name.cmp(&b.name)),
        });
        found
    }
}

fn described(resource: &ApiResource) -> Value {
    let mut value = json!({"name": resource.name, "singularName": resource.singular, "namespaced": resource.namespaced,
        "kind": resource.kind, "verbs": resource.verbs, "version": resource.version});
    if !resource.group.is_empty() {
        value["group"] = resource.group.clone().into();
    }
    if !resource.short.is_empty() {
        value["shortNames"] = json!(resource.short);
    }
    if !resource.categories.is_empty() {
        value["categories"] = json!(resource.categories);
    }
    value
}

/// Print the supported API versions on the server, in the form of "group/version"
#[derive(Args, Debug)]
pub struct ApiVersions {}

impl ApiVersions {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let discovery = match session.rediscover().await? {
            Some(fresh) => fresh,
            None => session.discovery().await?,
        };
        let versions = discovery
            .groups
            .iter()
            .flat_map(|group| group.versions.iter().map(|version| group_version(&group.name, version)));
        let mut versions: Vec<String> = versions.collect();
        versions.sort();
        for version in versions {
            writeln!(out, "{version}")?;
        }
        Ok(())
    }
}
