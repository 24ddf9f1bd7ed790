//! Images: the calls of the image service.

use super::{FilesystemUsage, Int64Value, PodSandboxConfig};

messages! {
    /// A reference, as somebody wrote it.
    ImageSpec { 1 image: text, 2 annotations: map, 18 user_specified_image: text, 19 runtime_handler: text, 20 image_ref: text }
    /// An image that is present.
    Image {
        1 id: text, 2 repo_tags: texts, 3 repo_digests: texts, 4 size: uint64, 7 spec: one(ImageSpec),
        5 uid: one(Int64Value), 6 username: text, 8 pinned: bool,
    }
    /// Which ones are meant.
    ImageFilter { 1 image: one(ImageSpec) }
    /// Asks which are present.
    ListImagesRequest { 1 filter: one(ImageFilter) }
    /// Those that are.
    ListImagesResponse { 1 images: many(Image) }
    /// The same, answered in parts.
    StreamImagesRequest { 1 filter: one(ImageFilter) }
    /// A part.
    StreamImagesResponse { 1 images: many(Image) }
    /// Asks for one.
    ImageStatusRequest { 1 image: one(ImageSpec), 2 verbose: bool }
    /// Nothing where it is not present.
    ImageStatusResponse { 1 image: one(Image), 2 info: map }
    /// Fetches one.
    PullImageRequest { 1 image: one(ImageSpec), 2 auth: one(AuthConfig), 3 sandbox_config: one(PodSandboxConfig) }
    /// It is present under this reference.
    PullImageResponse { 1 image_ref: text }
    /// For the registry.
    AuthConfig {
        1 username: text, 2 password: text, 3 auth: text, 4 server_address: text, 5 identity_token: text,
        6 registry_token: text,
    }
    /// Takes one away.
    RemoveImageRequest { 1 image: one(ImageSpec) }
    /// Gone.
    RemoveImageResponse {}
    /// Asks what all of them take.
    ImageFsInfoRequest {}
    /// What images take, and what containers write.
    ImageFsInfoResponse {
        1 image_filesystems: many(FilesystemUsage), 2 container_filesystems: many(FilesystemUsage),
    }
}
