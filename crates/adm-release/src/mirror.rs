//! `adm release mirror`: a release and its images to another registry, to the byte.

use std::io::Write;

use clap::{Args, ValueEnum};
use container_runtime::image::Reference;
use release::payload;

use crate::info;
use crate::remote::{AdmError, Remote, RemoteArgs};

/// Copies a release image and all that it names to another repository
#[derive(Args, Clone, Debug)]
pub struct MirrorArgs {
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// The release image
    image: Option<String>,
    /// The release image
    #[arg(long)]
    from: Option<String>,
    /// The repository to copy to
    #[arg(long)]
    to: Option<String>,
    /// Where the release image goes, if not into --to
    #[arg(long)]
    to_release_image: Option<String>,
    /// Do not copy the release image
    #[arg(long)]
    skip_release_image: bool,
    /// Only say what would be copied
    #[arg(long)]
    to_mirror: bool,
    /// Copy nothing
    #[arg(long)]
    dry_run: bool,
    /// What to say about using the copies
    #[arg(long, value_enum, default_value_t = Instructions::Idms)]
    print_mirror_instructions: Instructions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Instructions {
    /// An ImageDigestMirrorSet
    Idms,
    /// Nothing
    None,
}

impl MirrorArgs {
    /// Runs the command.
    pub async fn run(self, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), AdmError> {
        let usage = |text: &str| AdmError::Usage(text.to_owned());
        let image = match (&self.image, &self.from) {
            (Some(_), Some(_)) => {
                return Err(usage("you may only specify a single image via --from or argument"));
            }
            (one, other) => one
                .clone()
                .or(other.clone())
                .ok_or_else(|| usage("must specify a release image with --from"))?,
        };
        let to =
            self.to.clone().ok_or_else(|| usage("must specify an image repository to push to with --to"))?;
        if Reference::parse(&to)?.digest.is_some() || to.rsplit('/').next().unwrap_or_default().contains(':')
        {
            return Err(usage("--to must be to an image repository and may not contain a tag or digest"));
        }
        let remote = Remote::new(&self.remote)?;
        let release = info::load(&remote, &image).await?;
        let Some(own) = &release.image else {
            return Err(usage(
                "the release that comes with the binary is pushed by `adm release new --from-built-in`",
            ));
        };
        let version = release.name().replace('+', "_");
        let release_place = self.to_release_image.clone().unwrap_or_else(|| format!("{to}:{version}"));
        let mut list: Vec<(String, String)> = payload::tags(&release.references)
            .into_iter()
            .map(|(tag, image)| (image, format!("{to}:{version}-{tag}")))
            .collect();
        if !self.skip_release_image {
            list.push((own.pinned(), release_place.clone()));
        }
        if self.to_mirror {
            for (from, to) in &list {
                writeln!(out, "{from} {to}")?;
            }
            return Ok(());
        }
        writeln!(err, "info: Mirroring {} images to {to} ...", list.len())?;
        if !self.dry_run {
            for (from, to) in &list {
                let image = remote.image(from).await?;
                remote.copy(&image, &Reference::parse(to)?).await?;
            }
        }
        writeln!(out, "\nSuccess\nUpdate image:  {release_place}\nMirrored to: {to}")?;
        if self.print_mirror_instructions == Instructions::Idms {
            let mut sources: Vec<String> =
                list.iter().filter_map(|(from, _)| Some(from.split_once('@')?.0.to_owned())).collect();
            sources.sort();
            sources.dedup();
            out.write_all(instructions(&sources, &to).as_bytes())?;
        }
        Ok(())
    }
}

fn instructions(sources: &[String], to: &str) -> String {
    let entry = |indent: &str, source: &String| {
        format!("{indent}- mirrors:\n{indent}  - {to}\n{indent}  source: {source}\n")
    };
    let list = |indent: &str| sources.iter().map(|source| entry(indent, source)).collect::<String>();
    format!(
        "\nTo use the new mirrored repository to install, add the following section to the install-config.yaml:\n\n\
         imageDigestSources:\n{}\n\n\
         To use the new mirrored repository for upgrades, use the following to create an ImageDigestMirrorSet:\n\n\
         apiVersion: config.openshift.io/v1\nkind: ImageDigestMirrorSet\nmetadata:\n  name: example\nspec:\n\
         \x20 imageDigestMirrors:\n{}\n",
        list(""),
        list("  ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instructions_are_an_object() {
        let text = instructions(&["a.example/x".to_owned()], "b.example/y");
        let (_, object) = text.split_once("ImageDigestMirrorSet:\n\n").unwrap();
        let object: serde_json::Value = serde_yaml_ng::from_str(object).unwrap();
        assert_eq!(object["spec"]["imageDigestMirrors"][0]["mirrors"][0], "b.example/y");
    }
}
