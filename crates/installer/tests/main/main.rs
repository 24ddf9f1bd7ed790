//! The installer from outside: configs in, directories out, judged by other people's programs too.

mod api_server;
mod bad_configs;
mod commands;
mod configs;
mod directory;
mod docs;
mod outputs;
mod peers;
mod scripts;
mod static_pods;
