-- why the collapse control changed a prompt; empty: it did not
ALTER TABLE prompts ADD COLUMN IF NOT EXISTS reaction String DEFAULT '';
