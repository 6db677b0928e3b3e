package storage

// A Syncular payload is a null bitmap of ceil(columns/8) bytes, least significant bit first, bit set = NULL, padding bits 0, then
// the non-null values in column order. Appending nullable columns therefore changes only the bitmap (docs/design.md section 3).

// PayloadBitmapBytes is the length of the null bitmap for so many columns.
func PayloadBitmapBytes(columns int) int { return (columns + 7) / 8 }

// PayloadAppend returns what changes in a payload of old columns when the layout grows to now columns: the mask to OR into
// the last byte of the old bitmap (0 if old fills its bytes) and the bytes to put behind it. The new columns are NULL in every
// row; padding bits stay 0, since the codec of the sync protocol refuses others.
func PayloadAppend(old, now int) (mask byte, inserted []byte) {
	oldBytes, nowBytes := PayloadBitmapBytes(old), PayloadBitmapBytes(now)
	for bit := old; bit < min(now, oldBytes*8); bit++ {
		mask |= 1 << (bit % 8)
	}
	inserted = make([]byte, nowBytes-oldBytes)
	for bit := max(old, oldBytes*8); bit < now; bit++ {
		inserted[bit/8-oldBytes] |= 1 << (bit % 8)
	}
	return mask, inserted
}

// RewritePayload appends NULL columns to one payload. ok is false if the payload is shorter than its own bitmap.
func RewritePayload(payload []byte, old, now int) (rewritten []byte, ok bool) {
	oldBytes := PayloadBitmapBytes(old)
	if len(payload) < oldBytes {
		return nil, false
	}
	mask, inserted := PayloadAppend(old, now)
	rewritten = make([]byte, 0, len(payload)+len(inserted))
	rewritten = append(rewritten, payload[:oldBytes]...)
	if oldBytes > 0 {
		rewritten[oldBytes-1] |= mask
	}
	rewritten = append(rewritten, inserted...)
	return append(rewritten, payload[oldBytes:]...), true
}
