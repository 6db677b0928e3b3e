ALTER TABLE patients ADD CONSTRAINT patients_name_search CHECK (name_search <> '') NOT VALID;
