use std::{
    collections::{BTreeMap, btree_map},
    path::Path,
    sync::Arc,
};

use turbospark_tensor::{DType, Shape};

use crate::{
    Claims, Error, Folder, Linear, Made, Mapping, Piece, Result, Scaled, WeightFile,
    error::{shorten, shorten_dims},
    header::{self, Described},
    readings::ReadPlace,
};

/// Which file of a checkpoint; an index into [`Checkpoint::files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(u32);

impl FileId {
    /// The index into [`Checkpoint::files`].
    pub fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn nth(i: usize) -> Self {
        FileId(u32::try_from(i).expect("fewer files than an index of 64 MiB can name"))
    }
}

/// Where a tensor lies and what it is. `length` is always what `dtype` and `shape` take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which file.
    pub file: FileId,
    /// First byte, counted from the file's beginning; not always aligned to the element.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// How an element is stored.
    pub dtype: DType,
    /// Its sides.
    pub shape: Shape,
}

/// A tensor that is there but can't be read: an element type or a rank that this build doesn't know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Which file.
    pub file: FileId,
    /// First byte, counted from the file's beginning.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// The element type as written.
    pub dtype: String,
    /// The sides as written.
    pub dims: Vec<u64>,
}

/// What a checkpoint holds under one name.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "thousands at most, and nearly all are places")]
pub enum Entry {
    /// A tensor that can be read as it lies.
    Place(Place),
    /// One that is put together from others.
    Made(Made),
    /// A weight with scales of its own.
    Scaled(Scaled),
    /// One that can't be read; it is an error only when it is asked for.
    Foreign(Foreign),
}

impl Entry {
    /// Which file holds it, or its first part.
    pub fn file(&self) -> FileId {
        match self {
            Entry::Place(place) => place.file,
            Entry::Made(made) => made.parts[0].file,
            Entry::Scaled(Scaled { codes: Piece::Place(place), .. }) => place.file,
            Entry::Scaled(Scaled { codes: Piece::Made(made), .. }) => made.parts[0].file,
            Entry::Foreign(foreign) => foreign.file,
        }
    }

    /// Bytes that it takes as a model uses it.
    pub fn length(&self) -> u64 {
        match self {
            Entry::Place(place) => place.length,
            Entry::Made(made) => made.length(),
            Entry::Scaled(scaled) => scaled.pieces().map(Piece::length).sum(),
            Entry::Foreign(foreign) => foreign.length,
        }
    }

    /// Number of weights; 0 where that can't be read.
    pub fn elements(&self) -> u64 {
        match self {
            Entry::Place(place) => place.shape.elements() as u64,
            Entry::Made(made) => made.shape.elements() as u64,
            Entry::Scaled(scaled) => scaled.shape.elements() as u64,
            Entry::Foreign(foreign) => foreign.dims.iter().product(),
        }
    }

    /// The format for people, as in `BF16` or `affine 4-bit g64`.
    pub fn format(&self) -> String {
        match self {
            Entry::Place(place) => place.dtype.to_string(),
            Entry::Made(made) => made.dtype.to_string(),
            Entry::Scaled(scaled) => scaled.form.to_string(),
            Entry::Foreign(foreign) => shorten(&foreign.dtype),
        }
    }

    /// Format and shape for a message, as in `BF16 [96, 48]`.
    pub fn describe(&self) -> String {
        match self {
            Entry::Place(place) => format!("{} {}", place.dtype, place.shape),
            Entry::Made(made) => format!("{} {}", made.dtype, made.shape),
            Entry::Scaled(scaled) => format!("{} {}", scaled.form, scaled.shape),
            Entry::Foreign(foreign) => format!("{} {}", shorten(&foreign.dtype), shorten_dims(&foreign.dims)),
        }
    }
}

/// Tensors by name.
pub(crate) type Table = BTreeMap<String, Entry>;

/// What a program that wrote a checkpoint changed in the weights beside their names and layout, and a model undoes as
/// it runs; all false for a published one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conventions {
    /// Norms of Qwen3.5 hold the factor itself, `1 + w`.
    pub norms_hold_one: bool,
    /// DeltaNet's decay is stored as `-exp(A_log)`.
    pub decay_is_negated_exp: bool,
    /// DeltaNet's value heads are ordered by their place in the group first: head `j * K + k` belongs to key head `k`
    /// of `K`, and not head `k * r + j`.
    pub value_heads_tiled: bool,
}

/// A table from names to places over a set of files, in name order.
#[derive(Debug)]
pub struct Checkpoint {
    files: Vec<WeightFile>,
    table: Table,
    conventions: Conventions,
}

impl Checkpoint {
    /// Opens a folder as on the model hub, or one safetensors file. Reads headers alone.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Folder::open(path)?.checkpoint()
    }

    /// Opens a safetensors file that is in memory; `name` stands for it in messages.
    pub fn from_bytes(name: &str, bytes: impl Into<Mapping>) -> Result<Self> {
        Self::from_files(vec![WeightFile::in_memory(name, bytes.into())])
    }

    /// The tensors of safetensors files, under the names they have there.
    pub(crate) fn from_files(files: Vec<WeightFile>) -> Result<Self> {
        let mut table = Table::new();
        for (i, file) in files.iter().enumerate() {
            let id = FileId::nth(i);
            for described in header::read(file)? {
                let (name, entry) = entry(id, described);
                add(&mut table, &files, name, entry)?;
            }
        }
        Ok(Checkpoint { files, table, conventions: Conventions::default() })
    }

    /// The same files with tensors under the published names.
    pub(crate) fn read_as(
        self,
        read: impl FnOnce(Table, &ReadPlace<'_>) -> Result<(Table, Conventions)>,
    ) -> Result<Self> {
        let Checkpoint { files, table, .. } = self;
        let bytes = |place: &Place, out: &mut [u8]| files[place.file.index()].read_at(place.offset, out);
        let (table, conventions) = read(table, &bytes)?;
        Ok(Checkpoint { files, table, conventions })
    }

    /// Files with a table that was read elsewhere.
    pub(crate) fn of(files: Vec<WeightFile>, table: Table, conventions: Conventions) -> Self {
        Checkpoint { files, table, conventions }
    }

    /// What its writer changed in the weights.
    pub fn conventions(&self) -> Conventions {
        self.conventions
    }

    /// The files; a [`FileId`] is an index into them.
    pub fn files(&self) -> &[WeightFile] {
        &self.files
    }

    /// All files, in the order of [`Checkpoint::files`].
    pub fn file_ids(&self) -> impl Iterator<Item = FileId> {
        (0..self.files.len() as u32).map(FileId)
    }

    /// Whether all mapped bytes that were read so far were the files' own: to be asked after a pass, where the program
    /// has installed [`guard_mappings`](crate::guard_mappings).
    ///
    /// # Errors
    /// [`Error::Changed`] with the file that was cut.
    pub fn check_intact(&self) -> Result<()> {
        self.files.iter().try_for_each(WeightFile::check_intact)
    }

    /// Gives the memory of a tensor's mapped pages back; they are fetched again when they are used next.
    pub fn give_back(&self, place: &Place) {
        self.files[place.file.index()].give_back(place.offset, place.length);
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is no tensor at all.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Bytes of all tensors together.
    pub fn total_bytes(&self) -> u64 {
        self.table.values().map(Entry::length).sum()
    }

    /// Whether there is a tensor of this name, readable or not.
    pub fn contains(&self, name: &str) -> bool {
        self.table.contains_key(name)
    }

    /// What lies under `name`, readable or not.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.table.get(name)
    }

    /// Everything in name order.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.table.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// The tensor's own key and what it is, or why it can't be read; `None` where there is no such tensor.
    pub(crate) fn lookup(&self, name: &str) -> Option<Result<(&str, Linear)>> {
        let (key, entry) = self.table.get_key_value(name)?;
        Some(match entry {
            Entry::Place(place) => Ok((key, Linear::Piece(Piece::Place(*place)))),
            Entry::Made(made) => Ok((key, Linear::Piece(Piece::Made(made.clone())))),
            Entry::Scaled(scaled) => Ok((key, Linear::Scaled(scaled.clone()))),
            Entry::Foreign(foreign) => Err(Error::UnsupportedDType {
                name: shorten(name),
                dtype: shorten(&foreign.dtype),
                shape: shorten_dims(&foreign.dims),
            }),
        })
    }

    /// The place of a tensor, or `None` where there is no such tensor or it isn't used as it lies.
    ///
    /// A loader uses [`Checkpoint::claims`] instead, which also holds the shape against what it expects.
    pub fn place(&self, name: &str) -> Result<Option<Place>> {
        match self.lookup(name).transpose()? {
            Some((_, Linear::Piece(Piece::Place(place)))) => Ok(Some(place)),
            _ => Ok(None),
        }
    }

    /// Begins to claim tensors for a model.
    pub fn claims(&self) -> Claims<'_> {
        Claims::new(self)
    }

    /// A file's bytes in place; see [`Mapping`] for what that asks of the file.
    ///
    /// # Panics
    /// When `file` comes from a checkpoint with more files.
    pub fn map(&self, file: FileId) -> Result<Arc<Mapping>> {
        self.files[file.index()].map()
    }

    /// Fills `out` from `offset` of a file, without mapping.
    ///
    /// # Panics
    /// When `file` comes from a checkpoint with more files.
    pub fn read_at(&self, file: FileId, offset: u64, out: &mut [u8]) -> Result<()> {
        self.files[file.index()].read_at(offset, out)
    }

    /// Whether a tensor is likely in the page cache, so that a copy is faster than reading it past that.
    ///
    /// # Panics
    /// When `place` comes from a checkpoint with more files.
    pub fn is_cached(&self, place: &Place) -> bool {
        self.files[place.file.index()].is_cached(place.offset, place.length)
    }

    /// Asks the system to bring a tensor to the page cache, and doesn't wait for it. Advice: nothing depends on it.
    ///
    /// # Panics
    /// When `place` comes from a checkpoint with more files.
    pub fn fetch_ahead(&self, place: &Place) {
        self.files[place.file.index()].fetch_ahead(place.offset, place.length);
    }

    /// Copies a tensor into `out`, which has its length.
    ///
    /// # Panics
    /// When `out` has another length, or `place` comes from a checkpoint with more files.
    pub fn read(&self, place: &Place, out: &mut [u8]) -> Result<()> {
        assert_eq!(out.len() as u64, place.length, "the target has another length than the tensor");
        self.read_at(place.file, place.offset, out)
    }

    /// Copies a tensor into `out`, which has its length, or puts it together there.
    ///
    /// # Panics
    /// As [`Checkpoint::read`].
    pub fn fill(&self, piece: &Piece, out: &mut [u8]) -> Result<()> {
        let made = match piece {
            Piece::Place(place) => return self.read(place, out),
            Piece::Made(made) => made,
        };
        assert_eq!(out.len() as u64, made.length(), "the target has another length than the tensor");
        let parts = made.parts.iter().map(|part| {
            let mut bytes = vec![0; part.length as usize];
            self.read(part, &mut bytes).map(|()| bytes)
        });
        made.fill(&parts.collect::<Result<Vec<_>>>()?, out);
        Ok(())
    }
}

/// Adds a tensor to a table, unless its name is there.
pub(crate) fn add(table: &mut Table, files: &[WeightFile], name: String, entry: Entry) -> Result<()> {
    match table.entry(name) {
        btree_map::Entry::Vacant(slot) => {
            slot.insert(entry);
            Ok(())
        }
        btree_map::Entry::Occupied(slot) => Err(Error::DuplicateTensor {
            name: shorten(slot.key()),
            first: files[slot.get().file().index()].name().to_owned(),
            second: files[entry.file().index()].name().to_owned(),
        }),
    }
}

fn entry(file: FileId, described: Described) -> (String, Entry) {
    let Described { name, dtype, dims, offset, length } = described;
    let sides: Option<Vec<usize>> = dims.iter().map(|&side| usize::try_from(side).ok()).collect();
    let shape = sides.and_then(|sides| Shape::try_new(&sides).ok());
    let entry = match (dtype.parse(), shape) {
        (Ok(dtype), Some(shape)) => Entry::Place(Place { file, offset, length, dtype, shape }),
        _ => Entry::Foreign(Foreign { file, offset, length, dtype, dims }),
    };
    (name, entry)
}
