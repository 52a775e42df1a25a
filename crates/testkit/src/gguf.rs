//! Small GGUF files, honest or not.

/// Writes a GGUF file of version 3.
#[derive(Clone, Debug, Default)]
pub struct GgufWriter {
    keys: Vec<u8>,
    key_count: u64,
    tensors: Vec<u8>,
    tensor_count: u64,
    data: Vec<u8>,
    alignment: Option<usize>,
}

impl GgufWriter {
    /// A file without keys and tensors.
    pub fn new() -> Self {
        GgufWriter::default()
    }

    /// A key with its type's number and the bytes of its value.
    pub fn raw(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.keys.extend(string(key));
        self.keys.extend(kind.to_le_bytes());
        self.keys.extend(value);
        self.key_count += 1;
        self
    }

    /// An array with its elements' type and bytes.
    pub fn raw_array(self, key: &str, kind: u32, count: u64, elements: &[u8]) -> Self {
        self.raw(key, 9, &[&kind.to_le_bytes()[..], &count.to_le_bytes(), elements].concat())
    }

    /// A `u16`.
    pub fn u16(self, key: &str, value: u16) -> Self {
        self.raw(key, 2, &value.to_le_bytes())
    }

    /// A `u32`.
    pub fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    /// An `i32`.
    pub fn i32(self, key: &str, value: i32) -> Self {
        self.raw(key, 5, &value.to_le_bytes())
    }

    /// An `f32`.
    pub fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, 6, &value.to_le_bytes())
    }

    /// A bool.
    pub fn flag(self, key: &str, value: bool) -> Self {
        self.raw(key, 7, &[value.into()])
    }

    /// A string.
    pub fn text(self, key: &str, value: &str) -> Self {
        self.raw(key, 8, &string(value))
    }

    /// An array of strings.
    pub fn texts<S: AsRef<str>>(self, key: &str, values: &[S]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|v| string(v.as_ref())).collect();
        self.raw_array(key, 8, values.len() as u64, &bytes)
    }

    /// An array of `i32`.
    pub fn i32s(self, key: &str, values: &[i32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.raw_array(key, 5, values.len() as u64, &bytes)
    }

    /// An array of `f32`.
    pub fn f32s(self, key: &str, values: &[f32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.raw_array(key, 6, values.len() as u64, &bytes)
    }

    /// Another alignment than 32, in `general.alignment` and for tensors from here on.
    pub fn alignment(mut self, alignment: u32) -> Self {
        self.alignment = Some(alignment as usize);
        self.u32("general.alignment", alignment)
    }

    /// A tensor by name, its type's number, its sides (outermost first) and its bytes.
    pub fn tensor(mut self, name: &str, kind: u32, dims: &[u64], bytes: &[u8]) -> Self {
        let offset = self.data.len().next_multiple_of(self.align());
        self.data.resize(offset, 0);
        self.data.extend(bytes);
        self.info(name, kind, dims, offset as u64)
    }

    /// A tensor's entry alone, whatever lies at its offset.
    pub fn info(mut self, name: &str, kind: u32, dims: &[u64], offset: u64) -> Self {
        self.tensors.extend(string(name));
        self.tensors.extend((dims.len() as u32).to_le_bytes());
        self.tensors.extend(dims.iter().rev().flat_map(|side| side.to_le_bytes()));
        self.tensors.extend(kind.to_le_bytes());
        self.tensors.extend(offset.to_le_bytes());
        self.tensor_count += 1;
        self
    }

    /// The whole file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(self.tensor_count.to_le_bytes());
        file.extend(self.key_count.to_le_bytes());
        file.extend(&self.keys);
        file.extend(&self.tensors);
        if self.tensor_count > 0 {
            file.resize(file.len().next_multiple_of(self.align()), 0);
        }
        file.extend(&self.data);
        file
    }

    fn align(&self) -> usize {
        self.alignment.unwrap_or(32)
    }
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}
