//! libyaml's parser and emitter behind a safe face.
//!
//! What upstream reads and writes with is the same library in another language: what is refused here is refused there, for
//! the same reason and at the same line, and what is written here looks as it does there.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_void},
    mem::MaybeUninit,
    ptr, slice,
};

use unsafe_libyaml as unsafe_yaml;

/// One thing that the parser found.
#[derive(Debug)]
pub(super) enum Event {
    DocumentStart,
    DocumentEnd,
    StreamEnd,
    Alias(String),
    Scalar(Scalar),
    SequenceStart { anchor: Option<String> },
    SequenceEnd,
    MappingStart { anchor: Option<String> },
    MappingEnd,
    Other,
}

/// A text, as it stands there.
#[derive(Debug)]
pub(super) struct Scalar {
    pub(super) anchor: Option<String>,
    /// Empty if none is written.
    pub(super) tag: String,
    pub(super) value: String,
    /// Whether it may be something else than a text: it is neither quoted nor tagged.
    pub(super) implicit: bool,
}

/// Reads a document that it borrows.
pub(super) struct Parser<'input> {
    // In a box, because the library keeps pointers into it.
    inner: Box<MaybeUninit<unsafe_yaml::yaml_parser_t>>,
    _input: &'input [u8],
}

impl<'input> Parser<'input> {
    pub(super) fn new(input: &'input [u8]) -> Self {
        let mut inner = Box::new(MaybeUninit::<unsafe_yaml::yaml_parser_t>::uninit());
        // SAFETY: the parser is written before it is used, stays where it is, and the input outlives it. It fails
        // only for want of memory, which aborts.
        unsafe {
            let _always = unsafe_yaml::yaml_parser_initialize(inner.as_mut_ptr());
            unsafe_yaml::yaml_parser_set_input_string(inner.as_mut_ptr(), input.as_ptr(), input.len() as u64);
        }
        Self { inner, _input: input }
    }

    /// The next event, its line, counted from 0, and the length of its tag, which a document can make much longer than what
    /// stands there. After an error there is nothing more to ask for.
    pub(super) fn next(&mut self) -> Result<(Event, u64, usize), String> {
        let mut event = MaybeUninit::<unsafe_yaml::yaml_event_t>::uninit();
        // SAFETY: `new` made the parser. The event is written whenever the parser does not fail, is read as what its type
        // says, and is freed after everything was copied out of it.
        unsafe {
            if unsafe_yaml::yaml_parser_parse(self.inner.as_mut_ptr(), event.as_mut_ptr()).fail {
                return Err(self.complaint());
            }
            let found = convert(event.assume_init_ref());
            let line = event.assume_init_ref().start_mark.line;
            let tag = tag_len(event.assume_init_ref());
            unsafe_yaml::yaml_event_delete(event.as_mut_ptr());
            Ok((found, line, tag))
        }
    }

    /// Why the parser failed, with the line in front if it is known and not the first one. Only the scanner counts lines
    /// from one as people do; that is how upstream has it.
    fn complaint(&self) -> String {
        // SAFETY: the parser is there, and its complaints are texts of the library that live for ever.
        let (parser, problem) = unsafe {
            let parser = self.inner.assume_init_ref();
            let problem = match parser.problem.is_null() {
                true => "unknown problem parsing YAML content".into(),
                false => CStr::from_ptr(parser.problem.cast()).to_string_lossy(),
            };
            (parser, problem)
        };
        let line = match (parser.problem_mark.line, parser.context_mark.line) {
            (0, context) => context,
            (line, _) if parser.error == unsafe_yaml::YAML_SCANNER_ERROR => line + 1,
            (line, _) => line,
        };
        // The one word that is spelt in another way there.
        let problem = problem.replace("hexadecimal", "hexdecimal");
        match line {
            0 => problem,
            line => format!("line {line}: {problem}"),
        }
    }
}

impl Drop for Parser<'_> {
    fn drop(&mut self) {
        // SAFETY: made in `new`, deleted once.
        unsafe { unsafe_yaml::yaml_parser_delete(self.inner.as_mut_ptr()) }
    }
}

/// # Safety
/// The event must have been filled in by the parser.
unsafe fn convert(event: &unsafe_yaml::yaml_event_t) -> Event {
    // SAFETY: the type says which part of the union is there; texts end with a zero or come with their length.
    unsafe {
        match event.type_ {
            unsafe_yaml::YAML_DOCUMENT_START_EVENT => Event::DocumentStart,
            unsafe_yaml::YAML_DOCUMENT_END_EVENT => Event::DocumentEnd,
            unsafe_yaml::YAML_STREAM_END_EVENT => Event::StreamEnd,
            unsafe_yaml::YAML_ALIAS_EVENT => Event::Alias(text(event.data.alias.anchor).unwrap_or_default()),
            unsafe_yaml::YAML_SCALAR_EVENT => {
                let scalar = &event.data.scalar;
                let bytes = match scalar.value.is_null() {
                    true => &[][..],
                    false => slice::from_raw_parts(scalar.value, scalar.length as usize),
                };
                Event::Scalar(Scalar {
                    anchor: text(scalar.anchor),
                    tag: text(scalar.tag).unwrap_or_default(),
                    value: String::from_utf8_lossy(bytes).into_owned(),
                    implicit: scalar.plain_implicit,
                })
            }
            unsafe_yaml::YAML_SEQUENCE_START_EVENT => {
                Event::SequenceStart { anchor: text(event.data.sequence_start.anchor) }
            }
            unsafe_yaml::YAML_SEQUENCE_END_EVENT => Event::SequenceEnd,
            unsafe_yaml::YAML_MAPPING_START_EVENT => {
                Event::MappingStart { anchor: text(event.data.mapping_start.anchor) }
            }
            unsafe_yaml::YAML_MAPPING_END_EVENT => Event::MappingEnd,
            _ => Event::Other,
        }
    }
}

/// # Safety
/// The event must have been filled in by the parser.
unsafe fn tag_len(event: &unsafe_yaml::yaml_event_t) -> usize {
    // SAFETY: the type says which part of the union is there, and tags end with a zero.
    unsafe {
        let tag: *const u8 = match event.type_ {
            unsafe_yaml::YAML_SCALAR_EVENT => event.data.scalar.tag,
            unsafe_yaml::YAML_SEQUENCE_START_EVENT => event.data.sequence_start.tag,
            unsafe_yaml::YAML_MAPPING_START_EVENT => event.data.mapping_start.tag,
            _ => return 0,
        };
        if tag.is_null() { 0 } else { CStr::from_ptr(tag.cast()).count_bytes() }
    }
}

/// # Safety
/// Null, or a text that ends with a zero.
unsafe fn text(pointer: *const u8) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: not null, and the caller promises the rest.
    Some(unsafe { CStr::from_ptr(pointer.cast()) }.to_string_lossy().into_owned())
}

/// How a text is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// As it is, unless it would be read as syntax.
    Plain,
    Quoted,
    /// Its lines as lines.
    Literal,
}

/// What can be written.
pub(super) enum Piece<'a> {
    Scalar(&'a str, Style),
    SequenceStart,
    SequenceEnd,
    MappingStart,
    MappingEnd,
}

/// Writes one document.
pub(super) struct Emitter {
    // In a box, because the library keeps pointers to both.
    inner: Box<(MaybeUninit<unsafe_yaml::yaml_emitter_t>, Vec<u8>)>,
}

impl Emitter {
    pub(super) fn new() -> Self {
        let mut emitter = Self { inner: Box::new((MaybeUninit::uninit(), Vec::new())) };
        // SAFETY: the emitter is written before it is used, and the box stays where it is as long as it lives. The
        // lists of the document's start may be null.
        unsafe {
            let inner = emitter.inner.0.as_mut_ptr();
            let _always = unsafe_yaml::yaml_emitter_initialize(inner);
            unsafe_yaml::yaml_emitter_set_unicode(inner, true);
            unsafe_yaml::yaml_emitter_set_output(inner, take, ptr::from_mut(&mut emitter.inner.1).cast());
            emitter.event(|event| {
                unsafe_yaml::yaml_stream_start_event_initialize(event, unsafe_yaml::YAML_UTF8_ENCODING).ok
            });
            emitter.event(|event| {
                let (none, empty) = (ptr::null_mut(), ptr::null_mut());
                unsafe_yaml::yaml_document_start_event_initialize(event, none, empty, empty, true).ok
            });
        }
        emitter
    }

    /// Writes a piece. It fails only for what is no document, such as an end without a beginning; that is not written.
    pub(super) fn put(&mut self, piece: &Piece<'_>) {
        let none = ptr::null;
        // SAFETY: the texts are copied into the event. There are neither anchors nor tags.
        self.event(|event| unsafe {
            match piece {
                Piece::Scalar(text, style) => {
                    let style = match style {
                        Style::Plain => unsafe_yaml::YAML_PLAIN_SCALAR_STYLE,
                        Style::Quoted => unsafe_yaml::YAML_DOUBLE_QUOTED_SCALAR_STYLE,
                        Style::Literal => unsafe_yaml::YAML_LITERAL_SCALAR_STYLE,
                    };
                    let length = i32::try_from(text.len()).unwrap_or(i32::MAX);
                    unsafe_yaml::yaml_scalar_event_initialize(
                        event,
                        none(),
                        none(),
                        text.as_ptr(),
                        length,
                        true,
                        true,
                        style,
                    )
                    .ok
                }
                Piece::SequenceStart => {
                    unsafe_yaml::yaml_sequence_start_event_initialize(
                        event,
                        none(),
                        none(),
                        true,
                        unsafe_yaml::YAML_BLOCK_SEQUENCE_STYLE,
                    )
                    .ok
                }
                Piece::SequenceEnd => unsafe_yaml::yaml_sequence_end_event_initialize(event).ok,
                Piece::MappingStart => {
                    unsafe_yaml::yaml_mapping_start_event_initialize(
                        event,
                        none(),
                        none(),
                        true,
                        unsafe_yaml::YAML_BLOCK_MAPPING_STYLE,
                    )
                    .ok
                }
                Piece::MappingEnd => unsafe_yaml::yaml_mapping_end_event_initialize(event).ok,
            }
        });
    }

    /// The document, after all of it was put.
    pub(super) fn finish(mut self) -> String {
        // SAFETY: the emitter is there, and what it gathered is written by `take`.
        unsafe {
            self.event(|event| unsafe_yaml::yaml_document_end_event_initialize(event, true).ok);
            let _written = unsafe_yaml::yaml_emitter_flush(self.inner.0.as_mut_ptr());
        }
        String::from_utf8_lossy(&self.inner.1).into_owned()
    }

    fn event(&mut self, make: impl FnOnce(*mut unsafe_yaml::yaml_event_t) -> bool) {
        let mut event = MaybeUninit::uninit();
        if make(event.as_mut_ptr()) {
            // SAFETY: the event was made, and the emitter takes and frees it.
            let _refused =
                unsafe { unsafe_yaml::yaml_emitter_emit(self.inner.0.as_mut_ptr(), event.as_mut_ptr()) };
        }
    }
}

impl Drop for Emitter {
    fn drop(&mut self) {
        // SAFETY: made in `new`, deleted once.
        unsafe { unsafe_yaml::yaml_emitter_delete(self.inner.0.as_mut_ptr()) }
    }
}

/// Takes what the emitter has gathered.
///
/// # Safety
/// The first is what `Emitter::new` gave, the others are a buffer and its length.
unsafe fn take(out: *mut c_void, buffer: *mut u8, size: u64) -> i32 {
    // SAFETY: as the caller promises.
    unsafe { (*out.cast::<Vec<u8>>()).extend_from_slice(slice::from_raw_parts(buffer, size as usize)) };
    1
}
